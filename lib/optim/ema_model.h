// SPDX-License-Identifier: MIT
// Exponential moving average of a list of parameters with the semantics of
// diffusers.training_utils.EMAModel.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dalle2 {

struct EmaModelOptions {
  double decay = 0.9999;  ///< largest decay
  double min_decay = 0.0;
  int64_t update_after_step = 0;  ///< up to one step after it the average is a copy
  bool use_ema_warmup = false;    ///< decay by inv_gamma and power
  double inv_gamma = 1.0;
  double power = 2.0 / 3.0;
  bool foreach = false;  ///< all tensors in one call: the same average up to rounding

  bool operator==(const EmaModelOptions&) const = default;
};

/// The averages ("shadows") of parameters, in the order of the list; buffers have none. Every call
/// that takes parameters expects the same list: as many tensors, of the same shapes
/// (std::logic_error otherwise).
class EmaModel {
 public:
  /// Copies the parameters. @throws ConfigError for options out of range
  EmaModel(const std::vector<at::Tensor>& parameters, const EmaModelOptions& options);

  /// Decay of the `optimization_step`-th step, from 1. With s = step - update_after_step - 1: 0
  /// where s <= 0, else 1 - (1 + s / inv_gamma)^-power with warm-up and (1 + s) / (10 + s) without,
  /// at most `decay`, then at least `min_decay`.
  double get_decay(int64_t optimization_step) const;

  /// Call after every optimizer step: shadow -= (1 - decay) (shadow - parameter); a parameter that
  /// needs no gradient is copied. Shadows and parameters are on one device.
  void step(const std::vector<at::Tensor>& parameters);

  /// Puts the averages into the parameters.
  void copy_to(const std::vector<at::Tensor>& parameters) const;
  /// Keeps a copy of the parameters in host memory.
  void store(const std::vector<at::Tensor>& parameters);
  /// Puts the stored copy back and forgets it. @throws Error without an earlier store()
  void restore(const std::vector<at::Tensor>& parameters);

  /// Moves the averages; `dtype` applies to floating-point ones only. Complete when it returns.
  void to(std::optional<at::Device> device, std::optional<at::ScalarType> dtype = std::nullopt);
  /// From now on averages in host memory are page-locked, so that they move faster.
  /// @throws c10::Error on a machine without an accelerator
  void pin_memory();

  /// Makes the averages copies of the parameters and sets the step count to 0.
  void begin_anew(const std::vector<at::Tensor>& parameters);
  /// Sets what a saved state holds; `shadows`, if given, are copied. `foreach` stays as it is.
  void set_state(const EmaModelOptions& options,
                 int64_t optimization_step,
                 const std::optional<std::vector<at::Tensor>>& shadows);

  const EmaModelOptions& options() const { return options_; }
  int64_t optimization_step() const { return optimization_step_; }
  /// Decay of the last step; none before the first.
  std::optional<double> cur_decay_value() const { return cur_decay_value_; }
  const std::vector<at::Tensor>& shadow_params() const { return shadows_; }

 private:
  EmaModelOptions options_;
  std::vector<at::Tensor> shadows_;
  std::optional<std::vector<at::Tensor>> stored_;
  std::optional<double> cur_decay_value_;
  int64_t optimization_step_ = 0;
  bool pinned_ = false;
};

}  // namespace dalle2
