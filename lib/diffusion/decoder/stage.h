// SPDX-License-Identifier: MIT
// One stage of the cascade, with every option that changes the maths turned into an object.
#pragma once

#include <memory>
#include <optional>

#include "config/decoder/decoder_config.h"
#include "diffusion/decoder/decoder.h"
#include "diffusion/decoder/dream.h"
#include "diffusion/decoder/learned_variance.h"
#include "diffusion/decoder/lowres_conditioner.h"
#include "diffusion/decoder/noise_augmentation.h"
#include "diffusion/decoder/stage_space.h"
#include "diffusion/loss.h"
#include "diffusion/loss_weight.h"
#include "diffusion/noise_schedule.h"
#include "diffusion/objective.h"
#include "diffusion/timestep_density.h"
#include "model/unet/unet.h"

namespace dalle2 {

struct DecoderImpl::Stage {
  UnetPlan plan;
  std::shared_ptr<UnetImpl> unet;  ///< null after drop_unet
  NoiseSchedule schedule{nullptr};
  LowresConditioner lowres{nullptr};  ///< null in the first stage
  VqganVae vae{nullptr};              ///< null in a stage that works on pixels
  std::unique_ptr<StageSpace> space;
  std::unique_ptr<PredictionTarget> target;
  /// How the variational bound and the self conditioning of a training step read the output.
  std::unique_ptr<PredictionTarget> bound_target, self_cond_target;
  PixelLoss pixel_loss = nullptr;
  std::unique_ptr<LossWeight> weight;
  std::unique_ptr<TimestepDensity> density;
  std::unique_ptr<Dream> dream;
  NoiseAugmentation augmentation;
  std::optional<LearnedVariance> variance;
};

}  // namespace dalle2
