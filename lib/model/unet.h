// SPDX-License-Identifier: MIT
// The denoising network of one stage of the cascade (model.md, section 2).
#pragma once

#include <torch/nn.h>

#include <optional>

#include "config/model_config.h"

namespace dalle2 {

/// What a Unet sees beside the noisy image. Undefined tensors are absent.
struct UnetConditions {
  at::Tensor image_embed;         ///< [B, image_embed_dim]
  at::Tensor text_encodings;      ///< [B, L, text_embed_dim]
  at::Tensor lowres_cond_img;     ///< [B, C, H, W]
  at::Tensor lowres_noise_level;  ///< [B] int64
  at::Tensor self_cond;           ///< [B, C, H, W]
  at::Tensor image_keep_mask;     ///< [B] bool: false puts the null embedding; undefined keeps all
  at::Tensor text_keep_mask;      ///< [B] bool
};

/// true with probability 1 - drop_prob for each sample; 0 and 1 draw nothing. [B] bool
at::Tensor prob_mask(int64_t batch, double keep_prob, const at::Device& device,
                     std::optional<at::Generator> generator);

class UnetImpl : public torch::nn::Module {
 public:
  /// `config` as it stands in a UnetPlan (wiring resolved). @throws ConfigError
  explicit UnetImpl(const UnetConfig& config);
  ~UnetImpl() override;

  /// @param x [B, channels, H, W] noisy image; @param time [B] int64
  /// @return [B, channels_out, H, W]
  /// @throws DataError for a missing low-res image, a wrong text width or batch (both numbers)
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time, const UnetConditions& conditions);

  /// Classifier-free guidance: null + (cond - null) * cond_scale; a scale of 1 is a single forward.
  at::Tensor forward_with_cond_scale(const at::Tensor& x, const at::Tensor& time,
                                     const UnetConditions& conditions, double cond_scale);

  const UnetConfig& config() const;

 private:
  struct Layers;
  std::unique_ptr<Layers> layers_;
};
TORCH_MODULE(Unet);

/// Pillow-free cubic resampling of tensors, exact to the "ResizeRight" of the reference (model.md 9).
/// [B, C, H, W] -> [B, C, size, size]; equal width returns the input untouched.
at::Tensor resize_image_to(const at::Tensor& image, int64_t size,
                           std::optional<std::pair<double, double>> clamp_range = std::nullopt,
                           bool nearest = false);

}  // namespace dalle2
