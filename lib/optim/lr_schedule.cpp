// SPDX-License-Identifier: MIT
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace dalle2 {

LrSchedule::LrSchedule(double base_lr,
                       std::optional<int64_t> warmup_steps,
                       std::optional<int64_t> cosine_decay_max_steps)
    : base_lr_(base_lr),
      warmup_steps_(warmup_steps),
      cosine_decay_max_steps_(cosine_decay_max_steps) {
  if (!std::isfinite(base_lr) || base_lr < 0.0) {
    throw ConfigError("lr: expected a number >= 0, got {}", base_lr);
  }
  if (warmup_steps && *warmup_steps <= 0) {
    throw ConfigError(
        "warmup_steps: expected a positive number of steps, got {}; leave it out (null) to train "
        "without warm-up",
        *warmup_steps);
  }
  if (cosine_decay_max_steps && *cosine_decay_max_steps <= 0) {
    throw ConfigError(
        "cosine_decay_max_steps: expected a positive number of steps, got {}; leave it out (null) "
        "for a constant rate",
        *cosine_decay_max_steps);
  }
}

double LrSchedule::undampened(int64_t step) const {
  if (!cosine_decay_max_steps_) {
    return base_lr_ * factor_;
  }
  const double phase =
      std::numbers::pi * static_cast<double>(step) / static_cast<double>(*cosine_decay_max_steps_);
  return base_lr_ * (1.0 + std::cos(phase)) / 2.0 * factor_;
}

double LrSchedule::warmup_factor(int64_t step) const {
  if (!warmup_steps_) {
    return 1.0;
  }
  return std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(*warmup_steps_));
}

}  // namespace dalle2
