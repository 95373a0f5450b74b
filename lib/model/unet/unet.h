// SPDX-License-Identifier: MIT
// The denoising network of one stage of the cascade.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <optional>
#include <utility>

#include "config/decoder/decoder_config.h"
#include "model/resize.h"

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
at::Tensor prob_mask(int64_t batch,
                     double keep_prob,
                     const at::Device& device,
                     std::optional<at::Generator> generator);

struct UnetLayers;

class UnetImpl : public torch::nn::Module {
 public:
  /// `config` as it is in a UnetPlan: checked, with its wiring resolved.
  explicit UnetImpl(const UnetConfig& config);
  ~UnetImpl() override;

  /// @param x [B, channels, H, W] noisy image; @param time [B] int64
  /// @return [B, channels_out, H, W]
  /// @throws DataError for a missing image embedding, a wrong width or batch (both numbers)
  at::Tensor forward(const at::Tensor& x, const at::Tensor& time, const UnetConditions& conditions);

  /// The answers with the conditions and without image and text, both [B, channels_out, H, W], from one
  /// pass over 2 B rows: a small batch costs by its operations more than by its rows.
  std::pair<at::Tensor, at::Tensor> forward_with_and_without(const at::Tensor& x,
                                                             const at::Tensor& time,
                                                             const UnetConditions& conditions);

  /// Classifier-free guidance: null + (cond - null) * cond_scale; a scale of 1 is a single forward.
  at::Tensor forward_with_cond_scale(const at::Tensor& x,
                                     const at::Tensor& time,
                                     const UnetConditions& conditions,
                                     double cond_scale);

  const UnetConfig& config() const;

  /// The backward pass computes the activations of the first levels again: less memory, same gradients.
  /// The first level has the largest feature maps. @param levels 0 to recomputable_levels()
  void recompute_levels(int64_t levels);
  /// The levels and the middle.
  int64_t recomputable_levels() const;
  int64_t recomputed_levels() const;

 private:
  /// @param h [B, dim, H, W] of the first convolution; @param time of the pictures' type
  at::Tensor answer(at::Tensor h, const at::Tensor& time, const UnetConditions& conditions);

  std::unique_ptr<UnetLayers> layers_;
};
TORCH_MODULE(Unet);

}  // namespace dalle2
