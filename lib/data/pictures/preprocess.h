// SPDX-License-Identifier: MIT
// data.preprocessing: torchvision's transforms on 8-bit pictures, and the picture as a tensor's
// values.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/clip/clip_network_config.h"
#include "config/shared/shard_data_config.h"
#include "io/pictures/image.h"

namespace dalle2 {

/// Uniform 32-bit draws. With a std::mt19937 seeded as torch.manual_seed was, every transform draws
/// what torchvision draws.
using RandomBits = std::function<uint32_t()>;

/// Draws addressed by what they are for, by SplitMix64: one stream a sample, so
/// that neither the order of the samples nor the number of threads changes a picture.
class SampleRandom {
 public:
  /// @param ordinal tells apart repeated draws of one sample (resampling)
  SampleRandom(int64_t seed,
               int64_t epoch,
               const std::string& shard,
               const std::string& key,
               int64_t ordinal);
  uint32_t operator()();

 private:
  uint64_t state_;
};

/// torchvision's RandomResizedCrop.get_params: up to ten tries of a box with a share of the area in
/// `scale` and an aspect in `ratio`, else the largest centred box whose aspect is within `ratio`.
CropBox random_resized_crop_box(int width,
                                int height,
                                const std::vector<double>& scale,
                                const std::vector<double>& ratio,
                                const RandomBits& random);

/// torchvision's Resize: [short side] or [height, width]. @param fits [long side], as open_clip's
/// ResizeKeepRatio has it
/// @return width and height in a box at the origin; a side beyond int is its largest value
CropBox resized_size(int width, int height, const std::vector<int64_t>& size, bool fits = false);

/// torchvision's CenterCrop, empty where the picture is smaller. May reach outside the picture.
CropBox center_crop_box(int width, int height, const std::vector<int64_t>& size);

class Canvas;

/// What open_clip makes of a picture before its CLIP sees it, but for the normalisation.
std::vector<TransformConfig> clip_preprocessing(const ClipPreprocessing& clip);

/// How the files of pictures become pixels, in all readers.
/// @param channels of the pictures that a network sees: with 4 they keep their transparency
/// @param turns_by_default `apply_exif` where the config leaves it open
DecodeOptions decode_options(const PictureReadConfig& config,
                             int64_t channels = 3,
                             bool turns_by_default = false);
DecodeOptions decode_options(const ShardDataConfig& config, int64_t channels = 3);

/// The steps of data.preprocessing, in their order.
class Preprocess {
 public:
  /// @param most_pixels width times height that a step may make of a picture
  /// @param steps that a config may have @throws ConfigError for a filter of another name
  explicit Preprocess(const std::vector<TransformConfig>& steps,
                      DecodeOptions options = {},
                      int64_t most_pixels = ShardDataConfig().max_transform_pixels);

  /// Decodes a file and takes all steps but ToTensor. Of a JPEG no more is decoded than the first
  /// step needs; the result is the same.
  /// @param origin names the picture in errors
  /// @throws DataError as decode_image does, and for a step that would make more than the pixels
  /// allowed
  Image apply(const std::string& content,
              const std::string& origin,
              const RandomBits& random) const;
  /// All steps but ToTensor. Steps that stand after ToTensor work on the 8-bit picture too.
  /// @throws DataError for a step that would make more than the pixels allowed
  Image apply(Image image, const RandomBits& random) const;

 private:
  struct Step {
    TransformConfig config;
    Interpolation interpolation = Interpolation::kBilinear;
  };
  Image take_steps(Canvas canvas, const std::string& origin, const RandomBits& random) const;
  void check_result(const TransformConfig& step,
                    const CropBox& result,
                    const Canvas& canvas,
                    const std::string& origin) const;

  std::vector<Step> steps_;
  DecodeOptions options_;
  int64_t most_pixels_;
};

/// ToTensor: the pixels of one picture to its place in a batch, value / 255, or as they are into bytes.
/// @param batch [B, C, height, width], contiguous float32 or uint8; C is 3, 1 for Pillow's grey (ITU-R
/// 601), or 4 with alpha
void write_picture(const Image& image, const at::Tensor& batch, int64_t place);

/// Memory for a tensor of a batch, of which copy_to_device() makes one on the GPU.
/// @param gpu whose page-locked memory it is; none: the batch stays on the CPU
at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu);

/// The division, where the bytes are. @param bytes [...] uint8 @return [...] float32 in [0, 1]; the bits of the CPU's on every device
at::Tensor floats_from_bytes(const at::Tensor& bytes);
/// The same for bytes; floats as they are.
at::Tensor as_floats(const at::Tensor& pictures);

/// Warns of pictures that are smaller than what a CLIP sees, and so are enlarged for it: of the first one, and at 100,
/// 1,000, ... of them. Any number of threads may use it.
class SmallPictures {
 public:
  explicit SmallPictures(ClipPreprocessing clip) : clip_(std::move(clip)) {}

  /// @param content of a picture's file. One that cannot be read is not counted: who decodes it says so.
  /// @param origin names the picture
  void look_at(const std::string& content, const std::string& origin);

 private:
  ClipPreprocessing clip_;
  std::atomic<int64_t> count_ = 0;
};

}  // namespace dalle2
