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
  PredictionTarget target;
  std::optional<LossWeight> weight;  ///< this and the next two are there once the stage is made
  std::optional<TimestepDensity> density;
  std::optional<Dream> dream;
  NoiseAugmentation augmentation;
  std::optional<LearnedVariance> variance;
};

}  // namespace dalle2
