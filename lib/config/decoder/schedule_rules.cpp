// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include "config/decoder/plan_rules.h"

namespace dalle2 {
namespace {

// A chain whose last alphas_cumprod is 0 (jsd, zero terminal SNR) keeps nothing of the image at t =
// T-1. Adding noise and predicting x_start or v are fine there; what divides by it is not. With
// zero_terminal_snr, noise prediction has been refused already.
void check_last_step(const UnetPlan& stage,
                     size_t index,
                     bool zero_terminal_snr,
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
  if (!stage.sample_timesteps && stage.objective == Objective::eps && !zero_terminal_snr) {
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
  if (zero_terminal_snr && stage.objective == Objective::eps) {
    faults.error(
        "/decoder/zero_terminal_snr",
        fmt::format("needs predict_v or predict_x_start: at the last step the input is nothing but "
                    "noise, so predicting the noise teaches unet {} nothing about images; "
                    "set one of them to true for it, or zero_terminal_snr to false",
                    index + 1));
  }
  if (stage.beta_schedule == BetaSchedule::jsd) {
    return check_last_step(
        stage, index, zero_terminal_snr, "/decoder/beta_schedule", "the jsd schedule", faults);
  }
  if (!check_betas(stage.beta_schedule, stage.timesteps, network_name(index), faults)) return;
  if (zero_terminal_snr) {
    check_last_step(
        stage, index, zero_terminal_snr, "/decoder/zero_terminal_snr", "zero_terminal_snr", faults);
  }
}

}  // namespace dalle2
