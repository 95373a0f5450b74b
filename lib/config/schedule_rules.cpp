// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "config/beta_schedule.h"
#include "config/plan_rules.h"

namespace dalle2 {
namespace {

const char* name_of(BetaSchedule schedule) {
  return enum_names<BetaSchedule>[static_cast<size_t>(schedule)];
}

// A chain whose last alphas_cumprod is 0 (jsd, zero terminal SNR) keeps nothing of the image at t =
// T-1. Adding noise and predicting x_start or v are fine there; what divides by it is not.
void check_last_step(const UnetPlan& stage,
                     size_t index,
                     const std::string& pointer,
                     const std::string& what,
                     Faults& faults) {
  const std::string head = fmt::format("{} leaves nothing of the image at the last step", what);
  if (stage.learned_variance) {
    faults.error(pointer,
                 fmt::format("{}, where the loss of a learned variance is NaN: set "
                             "learned_variance to false for unet {}",
                             head,
                             index + 1));
  }
  if (!stage.sample_timesteps && stage.objective == Objective::eps) {
    faults.error(pointer,
                 fmt::format("{}, so noise prediction cannot be undone there: set predict_v or "
                             "predict_x_start to true for unet {}, or its sample_timesteps below "
                             "{}",
                             head,
                             index + 1,
                             stage.timesteps - 1));
  }
  if (stage.sample_timesteps == stage.timesteps - 1) {
    faults.error(pointer,
                 fmt::format("{}, where {} DDIM steps would start: use {} steps (DDPM) or fewer "
                             "than {} for unet {}",
                             head,
                             *stage.sample_timesteps,
                             stage.timesteps,
                             stage.timesteps - 1,
                             index + 1));
  }
}

}  // namespace

void check_noise_schedule(const UnetPlan& stage,
                          size_t index,
                          bool zero_terminal_snr,
                          Faults& faults) {
  if (stage.timesteps < 1) return;  // reported by the caller
  const std::vector<double> betas = beta_schedule_values(stage.beta_schedule, stage.timesteps);
  if (stage.beta_schedule == BetaSchedule::jsd) {
    check_last_step(stage, index, "/decoder/beta_schedule", "the jsd schedule", faults);
    return;
  }
  for (size_t t = 0; t < betas.size(); ++t) {
    if (betas[t] < 1) continue;
    faults.error("/decoder/timesteps",
                 fmt::format("with {} timesteps the {} schedule of unet {} has beta {:.4g} at step "
                             "{}; a beta must stay below 1, or the loss is NaN: use at least 21 "
                             "timesteps, or the cosine schedule",
                             stage.timesteps,
                             name_of(stage.beta_schedule),
                             index + 1,
                             betas[t],
                             t));
    return;
  }
  if (zero_terminal_snr) {
    check_last_step(stage, index, "/decoder/zero_terminal_snr", "zero_terminal_snr", faults);
  }
}

}  // namespace dalle2
