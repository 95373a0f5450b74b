// SPDX-License-Identifier: MIT
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace dalle2 {

double LrSchedule::undampened(int64_t step) const {
  if (!cosine_decay_max_steps) return base_lr * factor;
  const double phase =
      std::numbers::pi * static_cast<double>(step) / static_cast<double>(*cosine_decay_max_steps);
  return base_lr * (1.0 + std::cos(phase)) / 2.0 * factor;
}

double LrSchedule::at(int64_t step) const {
  if (!warmup_steps) return undampened(step);
  return undampened(step) *
         std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(*warmup_steps));
}

}  // namespace dalle2
