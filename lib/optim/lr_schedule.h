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
class LrSchedule {
 public:
  /// @throws ConfigError unless base_lr is finite and >= 0, and warmup_steps (W) and
  ///         cosine_decay_max_steps (T) are positive where given
  LrSchedule(double base_lr,
             std::optional<int64_t> warmup_steps,
             std::optional<int64_t> cosine_decay_max_steps);

  /// Rate of optimizer step `step` (0 is the first).
  double at(int64_t step) const { return undampened(step) * warmup_factor(step); }
  /// The same without warm-up: what the reference's scheduler holds.
  double undampened(int64_t step) const;
  double warmup_factor(int64_t step) const;
  /// Multiplies every rate from now on; base_lr() stays the config's.
  void set_factor(double factor) { factor_ = factor; }

  double base_lr() const { return base_lr_; }
  std::optional<int64_t> cosine_decay_max_steps() const { return cosine_decay_max_steps_; }

 private:
  double base_lr_;
  double factor_ = 1.0;
  std::optional<int64_t> warmup_steps_, cosine_decay_max_steps_;
};

}  // namespace dalle2
