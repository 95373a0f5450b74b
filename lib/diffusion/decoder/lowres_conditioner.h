// SPDX-License-Identifier: MIT
// Makes the low-resolution image that an upper stage of the cascade is shown.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn.h>

#include <utility>

#include "config/decoder/decoder_config.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// Maps between the range of the data and [-1, 1]. Without auto_normalize the data is in [-1, 1]
/// already.
struct ImageRange {
  bool auto_normalize = true;

  at::Tensor normalize(const at::Tensor& image) const {
    return auto_normalize ? image * 2 - 1 : image;
  }
  at::Tensor unnormalize(const at::Tensor& image) const {
    return auto_normalize ? (image + 1) * 0.5 : image;
  }
  /// Lowest and highest value of the data's images.
  std::pair<double, double> bounds() const { return {auto_normalize ? 0.0 : -1.0, 1.0}; }
};

/// Separable Gaussian blur with reflected borders. [B, C, H, W] -> [B, C, H, W]
/// @param kernel_size odd, less than twice the image's side; @param sigma pixels, above 0
at::Tensor gaussian_blur(const at::Tensor& image, int64_t kernel_size, double sigma);

struct LowresOptions {
  bool use_blur = true;
  bool use_noise = false;
  bool downsample_first = true;
  double blur_prob = 0.5;
  OneOrMany<double> blur_sigma = 0.6;                ///< or [low, high]
  OneOrMany<int64_t> blur_kernel_size = int64_t{3};  ///< or [low, high], odd sizes equally likely
  ImageRange range;
  DecoderLoopLayout layout = {};
};

/// The random part of one call.
struct LowresDraws {
  bool blur = false;  ///< one decision for the batch
  double blur_sigma = 0;
  int64_t blur_kernel_size = 0;
  at::Tensor noise;        ///< [B, C, S, S], if the conditioner uses noise
  at::Tensor noise_level;  ///< [B] int64 in [0, 1000)
};

struct LowresImage {
  at::Tensor image;        ///< [B, C, S, S] in the range of the data; with noise it may leave it
  at::Tensor noise_level;  ///< [B] int64, undefined without noise
};

/// With noise it owns a schedule: `noise_scheduler.*` in the state dict.
class LowresConditionerImpl : public torch::nn::Module {
 public:
  /// Steps of the schedule that noise levels are counted in.
  static constexpr int64_t kNoiseLevels = 1000;

  /// The options must be ones that plan_decoder accepts: odd kernels, ranges in order.
  explicit LowresConditionerImpl(const LowresOptions& options);

  const LowresOptions& options() const { return options_; }

  /// Decides on the blur: whether, and with which sigma and kernel. @param generator on the CPU
  LowresDraws draw_blur(at::Generator generator) const;

  /// Shrinks to `previous_size`, blurs, enlarges to `target_size` and noises, as the options say.
  LowresImage forward(const at::Tensor& image,
                      int64_t target_size,
                      int64_t previous_size,
                      const LowresDraws& draws) const;

  /// [B, C, H, W] -> [B, C, size, size], as the options say
  at::Tensor resize(const at::Tensor& image, int64_t size) const;

  /// Adds noise of `level` to an image in the range of the data.
  LowresImage add_noise(const at::Tensor& image,
                        const at::Tensor& level,
                        const at::Tensor& noise) const;

 private:
  LowresOptions options_;
  NoiseSchedule noise_scheduler_{nullptr};
};
TORCH_MODULE(LowresConditioner);

}  // namespace dalle2
