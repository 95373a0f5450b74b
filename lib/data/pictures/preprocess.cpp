// SPDX-License-Identifier: MIT
#include "data/pictures/preprocess.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

const char* name_of(TransformKind kind) {
  return enum_names<TransformKind>[static_cast<size_t>(kind)];
}

uint64_t absorb(uint64_t state, uint64_t value) {
  return split_mix((state ^ value) + kGoldenGamma);
}

/// ATen's uniform_ for one float: 24 random bits.
float draw_uniform(const RandomBits& random, float from, float to) {
  const float x = static_cast<float>(random() & 0xffffffU) * 0x1p-24F;
  return x * (to - from) + from;
}

/// ATen's randint(0, count) for counts below 2^28.
int draw_below(const RandomBits& random, int count) {
  return static_cast<int>(random() % static_cast<uint32_t>(count));
}

/// A range given as [low, high], or by its reach about `middle`.
std::pair<double, double> range_of(const std::vector<double>& given, double middle) {
  if (given.size() == 2) return {given[0], given[1]};
  return {middle - given[0], middle + given[0]};
}

/// torchvision's ColorJitter: an order of the four, then a draw for each that is on.
void jitter_colours(Image& image, const TransformConfig& config, const RandomBits& random) {
  struct Adjustment {
    void (*adjust)(Image& image, double factor);
    std::pair<double, double> range;
    double unchanged;
    double factor = 0;
    bool is_on() const { return range.first != unchanged || range.second != unchanged; }
  };
  std::array<Adjustment, 4> adjustments = {{
      {adjust_brightness, range_of(config.brightness, 1), 1},
      {adjust_contrast, range_of(config.contrast, 1), 1},
      {adjust_saturation, range_of(config.saturation, 1), 1},
      {adjust_hue, range_of(config.hue, 0), 0},
  }};
  std::array<size_t, 4> order = {0, 1, 2, 3};
  for (int place = 0; place < 3; ++place) {  // ATen's randperm
    std::swap(order[static_cast<size_t>(place)],
              order[static_cast<size_t>(place + draw_below(random, 4 - place))]);
  }
  for (Adjustment& each : adjustments) {
    if (!each.is_on()) continue;
    each.factor = draw_uniform(random,
                               static_cast<float>(std::max(each.range.first, each.unchanged - 1)),
                               static_cast<float>(each.range.second));
  }
  for (const size_t next : order) {
    const Adjustment& each = adjustments[next];
    if (each.is_on()) each.adjust(image, each.factor);
  }
}

std::array<double, 3> colour_of(const std::vector<double>& fill) {
  return {fill.front(), fill[fill.size() / 2], fill.back()};
}

int64_t height_of(const std::vector<int64_t>& size) {
  return size.front();
}
int64_t width_of(const std::vector<int64_t>& size) {
  return size.back();
}

/// The bytes of a picture, colour after colour. @param out [channels, height, width]
void write_planes(const Image& image, int64_t channels, uint8_t* out) {
  const size_t plane = image.pixels.size() / 3;
  if (channels > 1) {
    split_colours(image, out);
    if (channels == 4 && image.alpha.empty()) std::fill_n(out + 3 * plane, plane, uint8_t{255});
    if (channels == 4) std::copy(image.alpha.begin(), image.alpha.end(), out + 3 * plane);
    return;
  }
  // Pillow's weights of red, green and blue, in units of 1 / 65,536.
  for (size_t i = 0; i < plane; ++i) {
    const uint8_t* pixel = &image.pixels[3 * i];
    const uint32_t sum = pixel[0] * 19595U + pixel[1] * 38470U + pixel[2] * 7471U + 0x8000U;
    out[i] = static_cast<uint8_t>(sum >> 16U);
  }
}

}  // namespace

SampleRandom::SampleRandom(
    int64_t seed, int64_t epoch, const std::string& shard, const std::string& key, int64_t ordinal)
    : state_(kGoldenGamma) {
  for (const uint64_t part : {static_cast<uint64_t>(seed),
                              static_cast<uint64_t>(epoch),
                              Fnv1a<uint64_t>(shard).value(),
                              Fnv1a<uint64_t>(key).value(),
                              static_cast<uint64_t>(ordinal)}) {
    state_ = absorb(state_, part);
  }
}

uint32_t SampleRandom::operator()() {
  state_ += kGoldenGamma;
  return static_cast<uint32_t>(split_mix(state_) >> 32);
}

CropBox random_resized_crop_box(int width,
                                int height,
                                const std::vector<double>& scale,
                                const std::vector<double>& ratio,
                                const RandomBits& random) {
  const double area = static_cast<double>(height) * width;
  const float low_share = static_cast<float>(scale[0]), high_share = static_cast<float>(scale[1]);
  const float low_log = std::log(static_cast<float>(ratio[0]));
  const float high_log = std::log(static_cast<float>(ratio[1]));
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double target_area = area * draw_uniform(random, low_share, high_share);
    const double aspect = std::exp(draw_uniform(random, low_log, high_log));
    const double w = std::nearbyint(std::sqrt(target_area * aspect));
    const double h = std::nearbyint(std::sqrt(target_area / aspect));
    if (w <= 0 || w > width || h <= 0 || h > height) continue;
    CropBox box{0, 0, static_cast<int>(w), static_cast<int>(h)};
    box.top = draw_below(random, height - box.height + 1);
    box.left = draw_below(random, width - box.width + 1);
    return box;
  }
  const double aspect = static_cast<double>(width) / height;
  CropBox box{0, 0, width, height};
  if (aspect < ratio[0]) {
    box.height = std::max(static_cast<int>(std::nearbyint(width / ratio[0])), 1);
  } else if (aspect > ratio[1]) {
    box.width = std::max(static_cast<int>(std::nearbyint(height * ratio[1])), 1);
  }
  box.top = (height - box.height) / 2;
  box.left = (width - box.width) / 2;
  return box;
}

CropBox resized_size(int width, int height, const std::vector<int64_t>& size, bool fits) {
  if (size.size() == 2)
    return {0, 0, static_cast<int>(width_of(size)), static_cast<int>(height_of(size))};
  if (fits) {
    const double ratio =
        static_cast<double>(std::max(width, height)) / static_cast<double>(size[0]);
    const auto scaled = [&](int side) {
      return std::max(static_cast<int>(std::nearbyint(side / ratio)), 1);
    };
    return {0, 0, scaled(width), scaled(height)};
  }
  const int short_side = static_cast<int>(size[0]);
  const auto longer = [&](int long_in, int short_in) {
    const double side = static_cast<double>(size[0] * long_in) / short_in;
    return static_cast<int>(std::min<double>(side, std::numeric_limits<int>::max()));
  };
  if (width <= height) return {0, 0, short_side, longer(height, width)};
  return {0, 0, longer(width, height), short_side};
}

CropBox center_crop_box(int width, int height, const std::vector<int64_t>& size) {
  // A side that is too small is padded first, (missing / 2) in front; a longer one is cut with the
  // half rounded to even.
  const auto start = [](int have, int want) {
    if (want > have) return -((want - have) / 2);
    return static_cast<int>(std::nearbyint((have - want) / 2.0));
  };
  const int crop_width = static_cast<int>(width_of(size));
  const int crop_height = static_cast<int>(height_of(size));
  return {start(width, crop_width), start(height, crop_height), crop_width, crop_height};
}

/// A picture between two steps: pixels, or still a file of which nobody has asked for pixels.
class Canvas {
 public:
  explicit Canvas(Image image) : image_(std::move(image)) {}
  /// @param encoded outlives the canvas
  explicit Canvas(EncodedImage& encoded)
      : encoded_(&encoded), view_{0, 0, encoded.width(), encoded.height()} {}

  int width() const { return encoded_ != nullptr ? view_.width : image_.width; }
  int height() const { return encoded_ != nullptr ? view_.height : image_.height; }

  void crop_resize(const CropBox& box, const CropBox& to, Interpolation mode) {
    if (encoded_ != nullptr && !mirrored_) {
      image_ = encoded_->crop_resize(inside_file(box), to.width, to.height, mode);
      encoded_ = nullptr;
      return;
    }
    const bool is_mirrored = encoded_ != nullptr;  // then it resamples a little otherwise
    if (is_mirrored) crop(box);
    decode();
    const CropBox part = is_mirrored ? CropBox{0, 0, box.width, box.height} : box;
    image_ = dalle2::crop_resize(image_, part, to.width, to.height, mode);
  }

  /// The box may reach outside.
  void crop(const CropBox& box, uint8_t outside = 0) {
    const bool inside = box.left >= 0 && box.top >= 0 && box.left + box.width <= width() &&
                        box.top + box.height <= height();
    if (encoded_ != nullptr && inside) {
      view_ = inside_file(box);
      return;
    }
    decode();
    image_ = dalle2::crop(image_, box, outside);
  }

  void flip() {
    if (encoded_ != nullptr) {
      mirrored_ = !mirrored_;
    } else {
      image_ = flip_horizontally(image_);
    }
  }

  /// The pixels, to be changed in place.
  Image& pixels() {
    decode();
    return image_;
  }

  Image take() { return std::move(pixels()); }

 private:
  CropBox inside_file(const CropBox& box) const {
    const int left = mirrored_ ? view_.width - box.left - box.width : box.left;
    return {view_.left + left, view_.top + box.top, box.width, box.height};
  }

  void decode() {
    if (encoded_ == nullptr) return;
    image_ = encoded_->crop(view_);
    encoded_ = nullptr;
    if (std::exchange(mirrored_, false)) flip();
  }

  EncodedImage* encoded_ = nullptr;
  CropBox view_;           // the part of the file that is left
  bool mirrored_ = false;  // after the crop to the view
  Image image_;            // once there are pixels
};

std::vector<TransformConfig> clip_preprocessing(const ClipPreprocessing& clip) {
  TransformConfig resize, crop;
  resize.kind = TransformKind::Resize;
  resize.size = {clip.side};
  if (clip.resize_mode == "squash") resize.size.push_back(clip.side);
  resize.fits = clip.resize_mode == "longest";
  resize.interpolation = clip.interpolation;
  crop.kind = TransformKind::CenterCrop;
  crop.size = {clip.side};
  crop.fill = {static_cast<double>(clip.fill_color)};
  return {resize, crop, TransformConfig{}};
}

DecodeOptions decode_options(const PictureReadConfig& config,
                             int64_t channels,
                             bool turns_by_default) {
  DecodeOptions options{.apply_exif = config.turns(turns_by_default),
                        .keep_alpha = channels == 4,
                        .range = static_cast<int>(config.range.value_or(0))};
  if (config.ground) {
    Rgb& ground = options.ground.emplace();
    for (size_t i = 0; i < ground.size(); ++i)
      ground[i] = static_cast<uint8_t>(config.ground->rgb[i]);
  }
  return options;
}

DecodeOptions decode_options(const ShardDataConfig& config, int64_t channels) {
  DecodeOptions options = decode_options(config, channels, config.turns_pictures());
  options.fast_jpeg = config.fast_jpeg;
  return options;
}

Preprocess::Preprocess(const std::vector<TransformConfig>& steps,
                       DecodeOptions options,
                       int64_t most_pixels)
    : options_(options), most_pixels_(most_pixels) {
  bool is_tensor = false;
  for (const TransformConfig& step : steps) {
    if (step.kind == TransformKind::ToTensor) {
      is_tensor = true;
      continue;
    }
    const bool resamples =
        step.kind == TransformKind::RandomResizedCrop || step.kind == TransformKind::Resize;
    if (is_tensor && resamples) {
      log_warning(
          "data",
          "/data/preprocessing: {} comes after ToTensor, but resamples the 8-bit picture, as it "
          "does before ToTensor",
          name_of(step.kind));
    }
    steps_.push_back({step, interpolation_from_name(step.interpolation)});
  }
}

Image Preprocess::apply(const std::string& content,
                        const std::string& origin,
                        const RandomBits& random) const {
  EncodedImage encoded(content, origin, options_);
  return take_steps(Canvas(encoded), origin, random);
}

Image Preprocess::apply(Image image, const RandomBits& random) const {
  return take_steps(Canvas(std::move(image)), "the picture", random);
}

void Preprocess::check_result(const TransformConfig& step,
                              const CropBox& result,
                              const Canvas& canvas,
                              const std::string& origin) const {
  if (static_cast<int64_t>(result.width) * result.height <= most_pixels_) return;
  throw DataError(
      "{}: {} would make {} x {} pixels of {} x {}, more than the {} of /data/max_transform_pixels",
      origin,
      name_of(step.kind),
      with_commas(result.width),
      with_commas(result.height),
      with_commas(canvas.width()),
      with_commas(canvas.height()),
      with_commas(most_pixels_));
}

Image Preprocess::take_steps(Canvas canvas,
                             const std::string& origin,
                             const RandomBits& random) const {
  for (const Step& step : steps_) {
    const TransformConfig& config = step.config;
    switch (config.kind) {
      case TransformKind::RandomResizedCrop: {
        const CropBox to{0,
                         0,
                         static_cast<int>(width_of(config.size)),
                         static_cast<int>(height_of(config.size))};
        check_result(config, to, canvas, origin);
        const CropBox box = random_resized_crop_box(
            canvas.width(), canvas.height(), config.scale, config.ratio, random);
        canvas.crop_resize(box, to, step.interpolation);
        break;
      }
      case TransformKind::RandomHorizontalFlip:
        if (draw_uniform(random, 0, 1) < static_cast<float>(config.p)) canvas.flip();
        break;
      case TransformKind::Resize: {
        const CropBox whole{0, 0, canvas.width(), canvas.height()};
        const CropBox to = resized_size(whole.width, whole.height, config.size, config.fits);
        if (to == whole) break;
        check_result(config, to, canvas, origin);
        canvas.crop_resize(whole, to, step.interpolation);
        break;
      }
      case TransformKind::CenterCrop: {
        const CropBox box = center_crop_box(canvas.width(), canvas.height(), config.size);
        check_result(config, box, canvas, origin);
        canvas.crop(box, static_cast<uint8_t>(config.fill.front()));
        break;
      }
      case TransformKind::ColorJitter:
        jitter_colours(canvas.pixels(), config, random);
        break;
      case TransformKind::RandomRotation: {
        const auto [low, high] = range_of(config.degrees, 0);
        const double angle =
            draw_uniform(random, static_cast<float>(low), static_cast<float>(high));
        Image& pixels = canvas.pixels();
        if (std::max(pixels.width, pixels.height) > kMostRotatedSide) {
          throw DataError(
              "{}: {} turns pictures of at most {} pixels per side, and this one has {} x {}: put "
              "Resize or a crop before it",
              origin,
              name_of(config.kind),
              with_commas(kMostRotatedSide),
              with_commas(pixels.width),
              with_commas(pixels.height));
        }
        pixels = rotate(std::move(pixels), angle, step.interpolation, colour_of(config.fill));
        break;
      }
      case TransformKind::ToTensor:
        break;
    }
  }
  return canvas.take();
}

void write_picture(const Image& image, const at::Tensor& batch, int64_t place) {
  if (batch.scalar_type() == at::kByte) {
    write_planes(image, batch.size(1), batch.mutable_data_ptr<uint8_t>() + place * batch.stride(0));
    return;
  }
  thread_local std::vector<uint8_t> bytes;
  bytes.resize(static_cast<size_t>(batch.stride(0)));
  write_planes(image, batch.size(1), bytes.data());
  // The quotient is rounded: a product with 1 / 255 would be another float.
  std::ranges::transform(bytes,
                         batch.mutable_data_ptr<float>() + place * batch.stride(0),
                         [](uint8_t byte) { return static_cast<float>(byte) / 255.0F; });
}

at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu) {
  // LibTorch asks the thread's current GPU about its streams, and would open a context on the first one.
  const c10::OptionalDeviceGuard on_gpu(gpu);
  return at::empty(shape, at::TensorOptions().dtype(dtype).pinned_memory(gpu.has_value()));
}

at::Tensor floats_from_bytes(const at::Tensor& bytes) {
  // The divisor is a tensor: with a number from the host, LibTorch multiplies by the reciprocal, which rounds differently.
  const at::Tensor floats = bytes.to(at::kFloat);
  return floats.div_(at::full({}, 255.0, floats.options()));
}

at::Tensor as_floats(const at::Tensor& pictures) {
  return pictures.scalar_type() == at::kByte ? floats_from_bytes(pictures) : pictures;
}

void SmallPictures::look_at(const std::string& content, const std::string& origin) {
  int64_t width = 0, height = 0;
  if (const auto png = png_header(content)) {  // an EncodedImage would decode it whole
    width = png->width;
    height = png->height;
  } else {
    try {
      const EncodedImage picture(content, origin);
      width = picture.width();
      height = picture.height();
    } catch (const DataError&) {
      return;
    }
  }
  if (!clip_.enlarges(width, height)) return;
  const int64_t count = ++count_;
  if (count == 1) {
    log_warning(
        "clip",
        "{}: has {} x {} pixels, and the CLIP sees {} x {}: smaller pictures are enlarged, and their "
        "embeddings say less. Use larger pictures, or a CLIP that sees smaller ones.",
        printable(origin),
        width,
        height,
        clip_.side,
        clip_.side);
    return;
  }
  for (int64_t round = 100; round <= count; round *= 10) {
    if (round == count)
      log_warning(
          "clip", "pictures were enlarged for the CLIP {} times so far", with_commas(count));
  }
}

}  // namespace dalle2
