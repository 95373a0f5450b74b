// SPDX-License-Identifier: MIT
// One stage of the cascade, with every option that changes the maths turned into an object.
#pragma once

#include <memory>
#include <optional>

#include "config/decoder/decoder_config.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/decoder/lowres_conditioner.h"
#include "diffusion/loss.h"
#include "diffusion/noise_schedule.h"
#include "model/unet/unet.h"

namespace dalle2 {

struct DecoderImpl::Stage {
  UnetPlan plan;
  std::shared_ptr<UnetImpl> unet;  ///< null after drop_unet
  NoiseSchedule schedule{nullptr};
  LowresConditioner lowres{nullptr};  ///< null in the first stage
  VqganVae vae{nullptr};              ///< null in a stage that works on pixels
  ImageRange range;
  std::optional<LearnedVariance> variance;

  /// What the stage denoises: the pixels of pictures, in [-1, 1], or the map that its VAE makes of them, not
  /// yet quantised, times the scale (latent diffusion, Rombach et al. 2022). The VAE is used in eval mode
  /// and without gradients, whatever mode the decoder is in.
  /// @param images [B, C, H, W] in the range of the data @return [B, D, h, w], without gradients
  at::Tensor from_images(const at::Tensor& images) const;
  /// The way back. @return [B, C, H, W]
  at::Tensor to_images(const at::Tensor& x) const;
};

}  // namespace dalle2
