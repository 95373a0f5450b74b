// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "config/plan_rules.h"

namespace dalle2 {
namespace {

void check_loss(const UnetPlan& stage, size_t i, Faults& faults) {
  if (stage.loss.min_snr_gamma && stage.p2_loss_weight_gamma > 0) {
    faults.error(
        "/train/min_snr_gamma",
        fmt::format("excludes decoder.p2_loss_weight_gamma: both weigh the loss of unet {} by its "
                    "signal-to-noise ratio, and p2_loss_weight_gamma is {}; set one of them to "
                    "null or 0",
                    i + 1,
                    stage.p2_loss_weight_gamma));
  }
  if (!stage.loss.dream.enabled) return;
  if (const std::optional<std::string> fault = dream_fault(stage.objective)) {
    faults.error("/train/dream/enabled",
                 fmt::format("{}: unet {} predicts {}; set predict_v and predict_x_start of the "
                             "decoder to false for it, or dream.enabled to false",
                             *fault,
                             i + 1,
                             stage.objective == Objective::v ? "v" : "the clean image"));
  }
}

}  // namespace

std::optional<std::string> dream_fault(Objective objective) {
  switch (objective) {
    case Objective::eps:
      return std::nullopt;
    case Objective::v:
      return "DREAM has not been implemented for v-prediction";
    case Objective::x_start:
      return "Unknown prediction type sample";
  }
  return "Unknown prediction type";
}

void plan_losses(const DecoderTrainConfig& train, DecoderPlan& plan, Faults& faults) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) continue;
    UnetPlan& stage = plan.stages[i];
    if (train.min_snr_gamma) stage.loss.min_snr_gamma = train.min_snr_gamma->at(i);
    stage.loss.weighting = train.loss_weighting;
    stage.loss.timestep_sampling = train.timestep_sampling;
    stage.loss.dream = train.dream;
    stage.loss.noise_offset = train.noise_offset;
    stage.loss.input_perturbation = train.input_perturbation;
    check_loss(stage, i, faults);
  }
}

}  // namespace dalle2
