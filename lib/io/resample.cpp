// SPDX-License-Identifier: MIT
// Resampling bit for bit as in Pillow 13: a horizontal and a vertical pass in fixed point, 8 bits
// between them. Differs in how it is computed, not in what: rows are taken eight at a time.
#include "base/error.h"
#include "io/image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace dalle2 {
namespace {

// Legend: taps are the input pixels that make one output pixel; W, H are the input's, w, h the
// output's.

constexpr int kFractionBits = 32 - 8 - 2;  // of a weight; Pillow's PRECISION_BITS
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
  if (x == 0.0) {
    return 1.0;
  }
  if (x >= 1.0) {
    return 0.0;
  }
  x *= kPi;
  return std::sin(x) / x * (0.54 + 0.46 * std::cos(x));
}

double cubic_filter(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) {
    return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  }
  if (x < 2.0) {
    return (((x - 5) * x + 8) * x - 4) * kA;
  }
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) {
    return 1.0;
  }
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

Filter filter_of(Interpolation mode) {
  switch (mode) {
    case Interpolation::kBox:
      return {box_filter, 0.5};
    case Interpolation::kHamming:
      return {hamming_filter, 1.0};
    case Interpolation::kBicubic:
      return {cubic_filter, 2.0};
    case Interpolation::kLanczos:
      return {lanczos_filter, 3.0};
    case Interpolation::kBilinear:
    case Interpolation::kNearest:
      break;
  }
  return {triangle_filter, 1.0};
}

/// The taps of every output pixel along one axis.
struct Taps {
  int most = 0;            ///< stride of `weights`
  std::vector<int> first;  ///< first tap of an output pixel
  std::vector<int> count;
  std::vector<int32_t> weights;  ///< [out, most], fixed point
};

Taps make_taps(int in_size, int out_size, const Filter& filter) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);  // shrinking widens the filter
  const double support = filter.support * filter_scale;
  const double inverse_scale = 1.0 / filter_scale;
  Taps taps;
  taps.most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<size_t>(out_size));
  taps.count.resize(static_cast<size_t>(out_size));
  taps.weights.resize(static_cast<size_t>(out_size) * static_cast<size_t>(taps.most));
  std::vector<double> exact(static_cast<size_t>(taps.most));
  for (int i = 0; i < out_size; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - support + 0.5), 0);
    const int last = std::min(static_cast<int>(centre + support + 0.5), in_size);
    const size_t count = static_cast<size_t>(std::max(last - first, 0));
    double sum = 0.0;
    for (size_t k = 0; k < count; ++k) {
      exact[k] = filter.weight((static_cast<int>(k) + first - centre + 0.5) * inverse_scale);
      sum += exact[k];
    }
    int32_t* weights =
        taps.weights.data() + static_cast<size_t>(i) * static_cast<size_t>(taps.most);
    for (size_t k = 0; k < count; ++k) {
      const double weight = (sum != 0.0 ? exact[k] / sum : exact[k]) * (1 << kFractionBits);
      weights[k] = static_cast<int32_t>(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    taps.first[static_cast<size_t>(i)] = first;
    taps.count[static_cast<size_t>(i)] = static_cast<int>(count);
  }
  return taps;
}

// Eight values at once, whatever the machine has (GCC's vector extension).
using Int8x = int32_t __attribute__((vector_size(32)));
using Byte8x = uint8_t __attribute__((vector_size(8)));

constexpr size_t kLanes = 8;
constexpr int kHalf = 1 << (kFractionBits - 1);

/// Sums of weight * value, rounded and clipped to bytes.
[[gnu::always_inline]] inline void store_clipped(Int8x sum, uint8_t* to) {
  sum >>= kFractionBits;
  const Int8x zero = {}, top = zero + 255;
  sum = sum < 0 ? zero : sum;
  sum = sum > 255 ? top : sum;
  const Byte8x bytes = __builtin_convertvector(sum, Byte8x);
  std::memcpy(to, &bytes, kLanes);
}

[[gnu::always_inline]] inline Int8x load_bytes(const uint8_t* from) {
  Byte8x bytes;
  std::memcpy(&bytes, from, kLanes);
  return __builtin_convertvector(bytes, Int8x);
}

/// One input row group, [W, 3, 8 rows], to [w, 3, 8 rows].
[[gnu::always_inline]] inline void horizontal_group(const uint8_t* in,
                                                    uint8_t* out,
                                                    const Taps& taps) {
  constexpr size_t kPixel = 3 * kLanes;
  for (size_t x = 0; x < taps.first.size(); ++x) {
    const int32_t* weights = taps.weights.data() + x * static_cast<size_t>(taps.most);
    const uint8_t* pixel = in + static_cast<size_t>(taps.first[x]) * kPixel;
    Int8x red = Int8x{} + kHalf, green = red, blue = red;
    for (int k = 0; k < taps.count[x]; ++k, pixel += kPixel) {
      const int32_t weight = weights[k];
      red += load_bytes(pixel) * weight;
      green += load_bytes(pixel + kLanes) * weight;
      blue += load_bytes(pixel + 2 * kLanes) * weight;
    }
    store_clipped(red, out + x * kPixel);
    store_clipped(green, out + x * kPixel + kLanes);
    store_clipped(blue, out + x * kPixel + 2 * kLanes);
  }
}

/// One output row of `bytes` values from `count` input rows that lie `stride` bytes apart.
[[gnu::always_inline]] inline void vertical_row(const uint8_t* in,
                                                size_t stride,
                                                const int32_t* weights,
                                                int count,
                                                uint8_t* out,
                                                size_t bytes) {
  constexpr size_t kBlock = 4 * kLanes;
  size_t i = 0;
  for (; i + kBlock <= bytes; i += kBlock) {
    Int8x sum0 = Int8x{} + kHalf, sum1 = sum0, sum2 = sum0, sum3 = sum0;
    const uint8_t* from = in + i;
    for (int k = 0; k < count; ++k, from += stride) {
      const int32_t weight = weights[k];
      sum0 += load_bytes(from) * weight;
      sum1 += load_bytes(from + kLanes) * weight;
      sum2 += load_bytes(from + 2 * kLanes) * weight;
      sum3 += load_bytes(from + 3 * kLanes) * weight;
    }
    store_clipped(sum0, out + i);
    store_clipped(sum1, out + i + kLanes);
    store_clipped(sum2, out + i + 2 * kLanes);
    store_clipped(sum3, out + i + 3 * kLanes);
  }
  for (; i < bytes; ++i) {
    int32_t sum = kHalf;
    for (int k = 0; k < count; ++k) {
      sum += weights[k] * in[i + static_cast<size_t>(k) * stride];
    }
    out[i] = static_cast<uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
  }
}

// Each kernel twice: for any x86-64 (or other machine), and for AVX2, chosen when the program runs.
void horizontal_group_plain(const uint8_t* in, uint8_t* out, const Taps& taps) {
  horizontal_group(in, out, taps);
}
void vertical_row_plain(const uint8_t* in,
                        size_t stride,
                        const int32_t* weights,
                        int count,
                        uint8_t* out,
                        size_t bytes) {
  vertical_row(in, stride, weights, count, out, bytes);
}
#if defined(__x86_64__)
[[gnu::target("avx2")]] void horizontal_group_avx2(const uint8_t* in,
                                                   uint8_t* out,
                                                   const Taps& taps) {
  horizontal_group(in, out, taps);
}
[[gnu::target("avx2")]] void vertical_row_avx2(const uint8_t* in,
                                               size_t stride,
                                               const int32_t* weights,
                                               int count,
                                               uint8_t* out,
                                               size_t bytes) {
  vertical_row(in, stride, weights, count, out, bytes);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
const auto kHorizontalGroup = kHasAvx2 ? horizontal_group_avx2 : horizontal_group_plain;
const auto kVerticalRow = kHasAvx2 ? vertical_row_avx2 : vertical_row_plain;
#else
const auto kHorizontalGroup = horizontal_group_plain;
const auto kVerticalRow = vertical_row_plain;
#endif

/// RGB rows somewhere in memory.
struct Rows {
  const uint8_t* first;  ///< of row 0, at the left edge
  size_t stride;         ///< bytes from a row to the next
  int width, height;
  const uint8_t* row(size_t y) const { return first + y * stride; }
};

/// Rows of the new width; a group of eight is turned to [W, 3, 8], so that a weight serves 24
/// values.
std::vector<uint8_t> resize_rows(const Rows& in, int out_width, const Filter& filter) {
  const Taps taps = make_taps(in.width, out_width, filter);
  const size_t in_values = 3 * static_cast<size_t>(in.width),
               out_values = 3 * static_cast<size_t>(out_width);
  const size_t height = static_cast<size_t>(in.height);
  std::vector<uint8_t> out(out_values * height);
  std::vector<uint8_t> turned_in(in_values * kLanes), turned_out(out_values * kLanes);
  for (size_t y = 0; y < height; y += kLanes) {
    const size_t rows = std::min(kLanes, height - y);
    for (size_t r = 0; r < rows; ++r) {
      const uint8_t* from = in.row(y + r);
      for (size_t i = 0; i < in_values; ++i) {
        turned_in[i * kLanes + r] = from[i];
      }
    }
    kHorizontalGroup(turned_in.data(), turned_out.data(), taps);
    for (size_t r = 0; r < rows; ++r) {
      uint8_t* to = out.data() + (y + r) * out_values;
      for (size_t i = 0; i < out_values; ++i) {
        to[i] = turned_out[i * kLanes + r];
      }
    }
  }
  return out;
}

std::vector<uint8_t> resize_columns(const Rows& in, int out_height, const Filter& filter) {
  const Taps taps = make_taps(in.height, out_height, filter);
  const size_t values = 3 * static_cast<size_t>(in.width);
  std::vector<uint8_t> out(values * static_cast<size_t>(out_height));
  for (size_t y = 0; y < static_cast<size_t>(out_height); ++y) {
    kVerticalRow(in.row(static_cast<size_t>(taps.first[y])),
                 in.stride,
                 taps.weights.data() + y * static_cast<size_t>(taps.most),
                 taps.count[y],
                 out.data() + y * values,
                 values);
  }
  return out;
}

/// The input pixel of each output pixel. Pillow adds the step up instead of multiplying, and so do
/// we.
std::vector<size_t> nearest_pixels(int in_size, int out_size) {
  const double step = static_cast<double>(in_size) / out_size;
  std::vector<size_t> pixels(static_cast<size_t>(out_size));
  double position = step * 0.5;
  for (size_t& pixel : pixels) {
    pixel = std::min(static_cast<size_t>(position), static_cast<size_t>(in_size - 1));
    position += step;
  }
  return pixels;
}

std::vector<uint8_t> resize_nearest(const Rows& in, int out_width, int out_height) {
  const std::vector<size_t> columns = nearest_pixels(in.width, out_width);
  std::vector<uint8_t> out(3 * static_cast<size_t>(out_width) * static_cast<size_t>(out_height));
  uint8_t* to = out.data();
  for (const size_t y : nearest_pixels(in.height, out_height)) {
    for (const size_t x : columns) {
      std::memcpy(to, in.row(y) + 3 * x, 3);
      to += 3;
    }
  }
  return out;
}

}  // namespace

Image crop_resize(const Image& image,
                  int left,
                  int top,
                  int width,
                  int height,
                  int out_width,
                  int out_height,
                  Interpolation mode) {
  D2_CHECK(left >= 0 && top >= 0 && width > 0 && height > 0 && left + width <= image.width &&
               top + height <= image.height && out_width > 0 && out_height > 0,
           "crop {}x{} at ({}, {}) of a {}x{} picture to {}x{}",
           width,
           height,
           left,
           top,
           image.width,
           image.height,
           out_width,
           out_height);
  const size_t stride = 3 * static_cast<size_t>(image.width);
  Rows rows{image.pixels.data() + static_cast<size_t>(top) * stride + 3 * static_cast<size_t>(left),
            stride,
            width,
            height};
  if (width == out_width && height == out_height) {
    return crop(image, left, top, width, height);
  }
  if (mode == Interpolation::kNearest) {
    return {out_width, out_height, resize_nearest(rows, out_width, out_height)};
  }
  const Filter filter = filter_of(mode);
  // Since Pillow 13 the vertical pass comes first where the height loses more than twice what the
  // width does; the bytes between the passes are rounded, so the order shows.
  const bool vertical_first = height > out_height && height - out_height > 2 * (width - out_width);
  std::vector<uint8_t> pixels;
  for (const bool vertical : {vertical_first, !vertical_first}) {
    if (vertical && height != out_height) {
      pixels = resize_columns(rows, out_height, filter);
      rows = {pixels.data(), 3 * static_cast<size_t>(rows.width), rows.width, out_height};
    } else if (!vertical && width != out_width) {
      pixels = resize_rows(rows, out_width, filter);
      rows = {pixels.data(), 3 * static_cast<size_t>(out_width), out_width, rows.height};
    }
  }
  return {out_width, out_height, std::move(pixels)};
}

Interpolation interpolation_from_name(const std::string& name) {
  struct Row {
    const char* name;
    Interpolation mode;
  };
  // Pillow has one nearest mode, which already is what torch calls nearest-exact.
  constexpr std::array<Row, 7> kRows = {{
      {"bilinear", Interpolation::kBilinear},
      {"bicubic", Interpolation::kBicubic},
      {"box", Interpolation::kBox},
      {"nearest", Interpolation::kNearest},
      {"nearest_exact", Interpolation::kNearest},
      {"hamming", Interpolation::kHamming},
      {"lanczos", Interpolation::kLanczos},
  }};
  std::string names;
  for (const Row& row : kRows) {
    if (name == row.name) {
      return row.mode;
    }
    names += names.empty() ? "" : ", ";
    names += row.name;
  }
  throw ConfigError("\"{}\" is no interpolation; expected one of {}", name, names);
}

}  // namespace dalle2
