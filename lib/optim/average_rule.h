// SPDX-License-Identifier: MIT
// How an average follows the weights of a network: when it takes them in, and how much of itself it
// keeps then. What is averaged and where it lies is not asked here: every element goes its own way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "config/shared/train_options.h"

namespace dalle2 {

/// The decay of an average, and the count of its steps.
class AverageRule {
 public:
  virtual ~AverageRule() = default;
  /// The average takes in the weights; count() follows once the optimizer step is known to have been
  /// made. @param average, weights [n] float32 on one device @param skipped [] float32 there: not 0 if the
  /// step was skipped and nothing is to change. Undefined: it was made
  virtual void update(const at::Tensor& average,
                      const at::Tensor& weights,
                      const at::Tensor& skipped = {}) const = 0;
  /// Decay of the next averaging: the share of itself that the average keeps.
  virtual double decay() const = 0;
  /// The share s of the weights, if all that the next update() does is average += s (weights - average). An optimizer can do that while
  /// it has the weights at hand.
  virtual std::optional<double> share_of_next() const { return std::nullopt; }

  /// Counts an optimizer step that was made.
  void count() {
    initted_ = true;
    ++step_;
  }
  int64_t step() const { return step_; }  ///< that were counted
  /// The first copy has been made, by ema-pytorch's rule; the others do not ask.
  bool initted() const { return initted_; }
  /// Those of a checkpoint.
  void set_counters(bool initted, int64_t step) {
    initted_ = initted;
    step_ = step;
  }

 protected:
  bool initted_ = false;
  int64_t step_ = 0;
};

/// ema-pytorch 0.8.3: the first update and those up to ema_update_after_step copy; then one in
/// ema_update_every averages.
class EmaPytorchRule : public AverageRule {
 public:
  /// @param config within its limits
  explicit EmaPytorchRule(const AveragesConfig& config) : config_(config) {}
  /// "Hare to tortoise" (arXiv 2406.02596): every update_model_with_ema_every calls `weights` become the average.
  void update(const at::Tensor& average,
              const at::Tensor& weights,
              const at::Tensor& skipped = {}) const override;
  /// 0 up to ema_update_after_step, then clamp(1 - (1 + e / inv_gamma)^-power, min_value, beta),
  /// e = step - update_after_step - 1. A beta of 1 freezes the average after its first copies.
  double decay() const override { return decay_of(step_); }
  std::optional<double> share_of_next() const override;

 private:
  double decay_of(int64_t step) const;

  AveragesConfig config_;
};

/// diffusers.training_utils.EMAModel: every update averages.
class DiffusersRule : public AverageRule {
 public:
  /// @param config within its limits
  explicit DiffusersRule(const EmaConfig& config) : config_(config) {}
  /// average -= (1 - decay) (average - weights); with `foreach` the same up to rounding, in one call.
  void update(const at::Tensor& average,
              const at::Tensor& weights,
              const at::Tensor& skipped = {}) const override;
  double decay() const override { return decay_of(step_ + 1); }
  /// Of the step-th update, from 1. With s = step - update_after_step - 1: 0 where s <= 0, else, at most `decay`, then at
  /// least `min_decay`, 1 - (1 + s / inv_gamma)^-power with use_ema_warmup and (1 + s) / (10 + s) without.
  double decay_of(int64_t step) const;

 private:
  EmaConfig config_;
};

/// The mean of the weights over the steps tau = 1 ... t, weighted by tau^gamma: after step t the average
/// keeps (1 - 1/t)^(gamma + 1) of itself (Karras et al. 2024, arXiv 2312.02696, eq. 4).
class PowerRule : public AverageRule {
 public:
  explicit PowerRule(double gamma) : gamma_(gamma) {}
  void update(const at::Tensor& average,
              const at::Tensor& weights,
              const at::Tensor& skipped = {}) const override;
  double decay() const override;

 private:
  double gamma_;
};

/// Of the kind that the config names.
std::unique_ptr<AverageRule> make_average_rule(const AveragesConfig& config);

}  // namespace dalle2
