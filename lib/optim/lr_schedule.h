// SPDX-License-Identifier: MIT
// The learning rate of a step as a closed form: nothing to store, nothing to restore wrongly.
#pragma once

#include <cstdint>
#include <optional>

namespace dalle2 {

/// Linear warm-up times cosine annealing.
///   lr(k) = base * (1 + cos(pi k / T)) / 2 * min(1, (k + 1) / W)
/// for the k-th optimizer step, k from 0. The cosine rises again after T, as the reference's does
/// (CosineAnnealingLR, eta_min 0). Differs from upstream after a resume: upstream continues with the
/// rate that its warm-up was constructed with.
struct LrSchedule {
  double base_lr = 0.0;
  std::optional<int64_t> warmup_steps = {};            ///< W; none: no warm-up
  std::optional<int64_t> cosine_decay_max_steps = {};  ///< T; none: no annealing
  double factor = 1.0;                                 ///< of every rate, besides the config's

  /// Rate of optimizer step `step` (0 is the first).
  double at(int64_t step) const;
  /// The same without warm-up: what the reference's scheduler holds.
  double undampened(int64_t step) const;
};

}  // namespace dalle2
