// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "config/decoder/plan_rules.h"

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
  check_dream(stage.loss.dream, stage.objective, network_name(i), faults);
}

}  // namespace

void plan_losses(const DecoderTrainConfig& train, DecoderPlan& plan, Faults& faults) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) continue;
    UnetPlan& stage = plan.stages[i];
    stage.loss = train.loss_plan(i);
    check_loss(stage, i, faults);
  }
}

}  // namespace dalle2
