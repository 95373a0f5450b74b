// SPDX-License-Identifier: MIT
// Resampling bit for bit as in Pillow 13: a horizontal and a vertical pass in fixed point, 8 bits
// between them. Differs in how it is computed, not in what.
#include "io/pictures/resample.h"

#include "base/error.h"
#include "io/pictures/image_codecs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

namespace dalle2 {
namespace {

constexpr double kPi = 3.14159265358979323846;

double box_filter(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double triangle_filter(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double hamming_filter(double x) {
  x = std::abs(x);
  if (x == 0.0) return 1.0;
  if (x >= 1.0) return 0.0;
  x *= kPi;
  return std::sin(x) / x * (0.54 + 0.46 * std::cos(x));
}

double cubic_filter(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= kPi;
  return std::sin(x) / x;
}

double lanczos_filter(double x) {
  return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct Filter {
  double (*weight)(double);
  double support;
};

/// In the order of Interpolation; nothing is weighed by that of kNearest.
constexpr Filter kFilters[] = {{triangle_filter, 1.0},
                               {box_filter, 0.5},
                               {triangle_filter, 1.0},
                               {hamming_filter, 1.0},
                               {cubic_filter, 2.0},
                               {lanczos_filter, 3.0}};

/// The weights of one output pixel as shares of 1, then in fixed point.
void fix_weights(std::vector<double>& exact, size_t count, double sum, int32_t* weights) {
  for (size_t k = 0; k < count; ++k) {
    const double weight = (sum != 0.0 ? exact[k] / sum : exact[k]) * (1 << kFractionBits);
    weights[k] = static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
  }
}

/// Room that a thread keeps from picture to picture.
constexpr size_t kMostKept = size_t{1} << 24;
thread_local std::vector<uint8_t> kept_room;

/// What make_taps() is asked.
struct TapsKey {
  int in_size = 0, out_size = 0;
  double begin = 0, end = 0;
  Interpolation mode = Interpolation::kNearest;

  bool operator==(const TapsKey&) const = default;
  size_t hash() const {
    uint64_t sum = 0;
    for (const uint64_t part : {static_cast<uint64_t>(in_size),
                                static_cast<uint64_t>(out_size),
                                static_cast<uint64_t>(std::hash<double>()(begin)),
                                static_cast<uint64_t>(std::hash<double>()(end)),
                                static_cast<uint64_t>(mode)}) {
      sum = (sum ^ part) * 0x9e3779b97f4a7c15ULL;
      sum ^= sum >> 32;
    }
    return static_cast<size_t>(sum);
  }
};

/// The taps, which a thread keeps: many pictures have the same size, and square ones the same taps
/// across and down.
std::shared_ptr<const SplitTaps> taps_of(const TapsKey& key) {
  struct Kept {
    TapsKey key;
    std::shared_ptr<const SplitTaps> taps;
  };
  constexpr size_t kKept = 256;
  constexpr size_t kMostWeights = 1 << 13;  // with their pairs 64 KiB: at most 16 MiB a thread
  thread_local std::vector<Kept> kept(kKept);
  Kept& place = kept[key.hash() % kKept];
  if (place.taps && place.key == key) return place.taps;
  auto taps = std::make_shared<const SplitTaps>(
      make_taps(key.in_size, key.begin, key.end, key.out_size, key.mode));
  if (taps->taps.weights.size() <= kMostWeights) place = {key, taps};
  return taps;
}

void copy_rows(const uint8_t* from,
               size_t from_stride,
               uint8_t* to,
               size_t to_stride,
               size_t bytes,
               int rows) {
  for (int y = 0; y < rows; ++y, from += from_stride, to += to_stride) std::memcpy(to, from, bytes);
}

/// kNearest: the input pixel of each output pixel.
std::vector<int> nearest_pixels(int in_size, double begin, double end, int out_size) {
  const double step = (end - begin) / out_size;
  std::vector<int> pixels(static_cast<size_t>(out_size));
  double position = begin + step * 0.5;
  for (int& pixel : pixels) {
    pixel = std::clamp(static_cast<int>(position), 0, in_size - 1);
    position += step;
  }
  return pixels;
}

}  // namespace

Taps make_taps(int in_size, double begin, double end, int out_size, Interpolation mode) {
  const Filter& filter = kFilters[static_cast<size_t>(mode)];
  const double scale = (end - begin) / out_size;
  const double filter_scale = std::max(scale, 1.0);  // shrinking widens the filter
  const double support = filter.support * filter_scale;
  const double inverse_scale = 1.0 / filter_scale;
  Taps taps;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.most = (most + 3) / 4 * 4;
  taps.first.resize(static_cast<size_t>(out_size));
  taps.count.resize(static_cast<size_t>(out_size));
  taps.weights.resize(static_cast<size_t>(out_size) * static_cast<size_t>(taps.most));
  std::vector<double> exact(static_cast<size_t>(taps.most));
  for (int i = 0; i < out_size; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int last = std::min(static_cast<int>(centre + support + 0.5), in_size);
    const size_t count = static_cast<size_t>(std::max(last - first, 0));
    double sum = 0.0;
    for (size_t k = 0; k < count; ++k) {
      exact[k] = filter.weight((static_cast<int>(k) + first - centre + 0.5) * inverse_scale);
      sum += exact[k];
    }
    const size_t row = static_cast<size_t>(i);
    fix_weights(exact, count, sum, taps.weights.data() + row * static_cast<size_t>(taps.most));
    taps.first[row] = first;
    taps.count[row] = static_cast<int>(count);
  }
  return taps;
}

// Pillow adds the step up instead of multiplying, and so do we.
Resampler::Resampler(
    int width, int height, const RealBox& box, int out_width, int out_height, Interpolation mode)
    : width_(width), height_(height), out_width_(out_width), out_height_(out_height) {
  if (mode == Interpolation::kNearest) {
    nearest_columns_ = nearest_pixels(width, box.left, box.left + box.width, out_width);
    nearest_rows_ = nearest_pixels(height, box.top, box.top + box.height, out_height);
    nearest_ = {
        out_width,
        out_height,
        std::vector<uint8_t>(3 * static_cast<size_t>(out_width) * static_cast<size_t>(out_height))};
    return;
  }
  if (out_width != width || box.left != 0 || box.width != width) {
    across_ = taps_of({width, out_width, box.left, box.left + box.width, mode});
  }
  if (out_height != height || box.top != 0 || box.height != height) {
    down_ = taps_of({height, out_height, box.top, box.top + box.height, mode});
  }
  // Since Pillow 13 the vertical pass comes first where the height loses more than twice what the
  // width does; the bytes between the passes are rounded, so the order shows.
  vertical_first_ =
      across_ && down_ && height > out_height && height - out_height > 2 * (width - out_width);
  const int middle_width = across_ && !vertical_first_ ? out_width : width;
  middle_stride_ = 3 * static_cast<size_t>(middle_width) + kReadAhead;
  // One row more: what the vertical pass writes if it comes first.
  const size_t bytes = middle_stride_ * (static_cast<size_t>(height) + 1) + kReadAhead;
  std::vector<uint8_t>& room = bytes > kMostKept ? own_room_ : kept_room;
  if (room.size() < bytes) room.resize(bytes);
  middle_ = room.data();
}

void Resampler::push(const uint8_t* rows, size_t stride, int count) {
  D2_CHECK(pushed_ + count <= height_, "{} rows too many", pushed_ + count - height_);
  if (!nearest_rows_.empty()) {
    push_nearest(rows, stride, count);
  } else {
    uint8_t* to = middle_ + static_cast<size_t>(pushed_) * middle_stride_;
    if (across_ && !vertical_first_) {
      best_kernels().horizontal_pass(rows, stride, count, to, middle_stride_, *across_);
    } else {
      copy_rows(rows, stride, to, middle_stride_, 3 * static_cast<size_t>(width_), count);
    }
  }
  pushed_ += count;
}

void Resampler::push_nearest(const uint8_t* rows, size_t stride, int count) {
  for (size_t y = 0; y < nearest_rows_.size(); ++y) {
    const int row = nearest_rows_[y] - pushed_;
    if (row < 0 || row >= count) continue;
    const uint8_t* from = rows + static_cast<size_t>(row) * stride;
    uint8_t* to = nearest_.pixels.data() + 3 * nearest_columns_.size() * y;
    for (const int x : nearest_columns_) {
      std::memcpy(to, from + 3 * static_cast<size_t>(x), 3);
      to += 3;
    }
  }
}

Image Resampler::finish() {
  D2_CHECK(pushed_ == height_, "{} of {} rows were pushed", pushed_, height_);
  if (!nearest_rows_.empty()) return std::move(nearest_);
  const size_t stride = 3 * static_cast<size_t>(out_width_);
  Image image{out_width_, out_height_, {}};
  image.pixels.resize(stride * static_cast<size_t>(out_height_));
  if (!down_) {
    copy_rows(middle_, middle_stride_, image.pixels.data(), stride, stride, out_height_);
    return image;
  }
  if (!vertical_first_) {
    for (size_t y = 0; y < down_->taps.size(); ++y) {
      best_kernels().vertical_row(
          middle_, middle_stride_, *down_, y, image.pixels.data() + y * stride, stride);
    }
    return image;
  }
  // The row after the last holds a row of the full width, then what becomes of it.
  uint8_t* full = middle_ + static_cast<size_t>(height_) * middle_stride_;
  std::vector<uint8_t> narrow(stride + kWriteAhead);
  for (size_t y = 0; y < down_->taps.size(); ++y) {
    best_kernels().vertical_row(
        middle_, middle_stride_, *down_, y, full, 3 * static_cast<size_t>(width_));
    best_kernels().horizontal_pass(full, 0, 1, narrow.data(), 0, *across_);
    std::memcpy(image.pixels.data() + y * stride, narrow.data(), stride);
  }
  return image;
}

Image resample(const Image& image,
               const CropBox& from,
               const RealBox& box,
               int out_width,
               int out_height,
               Interpolation mode) {
  const size_t stride = 3 * static_cast<size_t>(image.width);
  const size_t bytes = 3 * static_cast<size_t>(from.width);
  const uint8_t* first = image.pixels.data() + static_cast<size_t>(from.top) * stride +
                         3 * static_cast<size_t>(from.left);
  const uint8_t* const end = image.pixels.data() + image.pixels.size();
  Resampler resampler(from.width, from.height, box, out_width, out_height, mode);
  // The last rows may have less than kReadAhead bytes after them.
  int direct = from.height;
  while (direct > 0 && static_cast<size_t>(end - first) <
                           static_cast<size_t>(direct - 1) * stride + bytes + kReadAhead) {
    --direct;
  }
  resampler.push(first, stride, direct);
  std::vector<uint8_t> padded(bytes + kReadAhead);
  for (int y = direct; y < from.height; ++y) {
    std::memcpy(padded.data(), first + static_cast<size_t>(y) * stride, bytes);
    resampler.push(padded.data(), 0, 1);
  }
  return resampler.finish();
}

Image crop_resize(
    const Image& image, const CropBox& box, int out_width, int out_height, Interpolation mode) {
  check_box(box, image.width, image.height);
  D2_CHECK(out_width > 0 && out_height > 0, "{}x{} pixels", out_width, out_height);
  if (!image.alpha.empty()) {
    return change_with_alpha(image, mode != Interpolation::kNearest, [&](const Image& part) {
      return crop_resize(part, box, out_width, out_height, mode);
    });
  }
  const RealBox whole{0, 0, static_cast<double>(box.width), static_cast<double>(box.height)};
  return resample(image, box, whole, out_width, out_height, mode);
}

Interpolation interpolation_from_name(const std::string& name) {
  // Pillow has one nearest mode, which already is what torch calls nearest-exact.
  constexpr std::pair<const char*, Interpolation> kRows[] = {
      {"bilinear", Interpolation::kBilinear},
      {"bicubic", Interpolation::kBicubic},
      {"box", Interpolation::kBox},
      {"nearest", Interpolation::kNearest},
      {"nearest_exact", Interpolation::kNearest},
      {"hamming", Interpolation::kHamming},
      {"lanczos", Interpolation::kLanczos}};
  std::string names;
  for (const auto& [known, mode] : kRows) {
    if (name == known) return mode;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  throw ConfigError(
      "The given interpolation mode {} is not supported. Currently supported interpolation modes "
      "are {}.",
      name,
      names);
}

}  // namespace dalle2
