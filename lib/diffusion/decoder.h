// SPDX-License-Identifier: MIT
// The cascade of diffusion stages (model.md, sections 4 to 7).
#pragma once

#include <torch/nn.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/model_config.h"
#include "model/unet.h"

namespace dalle2 {

/// One training example batch for a stage.
struct DecoderInputs {
  at::Tensor images;           ///< [B, C, H, W] in [0, 1], at least as large as the stage
  at::Tensor image_embeds;     ///< [B, D] or undefined
  at::Tensor text_encodings;   ///< [B, L, D] or undefined
};

/// Everything random of a training step. A test gives it; `draw` makes it.
struct DecoderStepNoise;

struct DecoderSampleOptions {
  at::Tensor image_embeds;       ///< [B, D]; undefined if unconditional
  at::Tensor text_encodings;     ///< [B, L, D]
  int64_t batch_size = 1;        ///< unconditional only
  OneOrMany<double> cond_scale = 1.0;
  int64_t start_at_unet = 1;     ///< 1-based, as everywhere users see it
  std::optional<int64_t> stop_at_unet;
  at::Tensor image;              ///< [B, C, h, w] in [0, 1], needed when start_at_unet > 1
  at::Tensor inpaint_image, inpaint_mask;   ///< [B, C, H, W], [B, H, W] bool (true keeps the given image)
  int64_t inpaint_resample_times = 5;
  std::optional<int64_t> sample_timesteps;  ///< overrides every stage
  std::string sampler = "auto";  ///< auto | ddpm | ddim | dpmpp
  double cfg_rescale = 0.0;      ///< Lin et al. 2023, eq. 15-16; 0 is off
  std::vector<at::Tensor> init_noise;  ///< one for each sampled stage, in order; empty draws it
  std::optional<at::Generator> generator;
};

class DecoderImpl : public torch::nn::Module {
 public:
  /// @throws ConfigError
  explicit DecoderImpl(const DecoderPlan& plan);

  /// Mean loss of stage `unet_number` (from 1); drawing everything random from `generator`.
  at::Tensor forward(const DecoderInputs& inputs, int64_t unet_number, at::Generator generator,
                     at::Tensor* lowres_cond_image = nullptr);

  /// @return [B, C, H, W] in the range of the last stage (about [0, 1], not clamped)
  at::Tensor sample(const DecoderSampleOptions& options);

  int64_t num_unets() const;
  const DecoderPlan& plan() const;
  /// Stage from 1; null after drop_unet.
  std::shared_ptr<UnetImpl> unet(int64_t unet_number);
  /// Puts another network in a stage (the EMA copy while sampling). @return the one that was there
  std::shared_ptr<UnetImpl> swap_unet(int64_t unet_number, std::shared_ptr<UnetImpl> unet);
  /// Takes the unet of an untrained stage out: no parameters, no keys (the reference's nn.Identity).
  void drop_unet(int64_t unet_number);
};
TORCH_MODULE(Decoder);

}  // namespace dalle2
