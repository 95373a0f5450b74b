// SPDX-License-Identifier: MIT
// Exponential moving average of a module's weights with the semantics of ema-pytorch 0.8.3.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "optim/flat_parameters.h"
#include "optim/flat_slice.h"

namespace dalle2 {

struct EmaOptions {
  double beta = 0.9999;             ///< largest decay; 1 freezes the average after its first copies
  int64_t update_after_step = 100;  ///< up to here the average is a copy
  int64_t update_every = 10;
  double inv_gamma = 1.0;
  double power = 2.0 / 3.0;
  double min_value = 0.0;
  /// "Hare to tortoise" (arXiv 2406.02596): the online weights become the average every so many
  /// calls.
  std::optional<int64_t> update_model_with_ema_every;
};

/// Parameters and floating buffers of `average` follow those of `online`, in one pass.
class Ema {
 public:
  /// Copies the online weights into the average.
  /// @throws ConfigError for options out of range; std::logic_error if the two differ in layout
  Ema(const FlatParameters& online, const FlatParameters& average, const EmaOptions& options);

  /// Call after every optimizer step.
  void update();

  /// From now on follows this stretch of the buffer alone, in memory of its own: the rest is
  /// others' work.
  void keep_slice(const FlatSlice& slice);
  /// What follows the online weights: the network's own values, or a slice's.
  const at::Tensor& values() const { return average_; }

  /// Decay of the next averaging: 0 up to update_after_step, then clamp(1 - (1 + e /
  /// inv_gamma)^-power, min_value, beta), e = step - update_after_step - 1.
  double decay() const;

  bool initted() const { return initted_; }  ///< the first update has happened
  int64_t step() const { return step_; }     ///< calls of update()
  /// Sets the counters of a checkpoint; the caller copies the weights into the modules.
  void set_counters(bool initted, int64_t step);
  /// Makes the average a copy of the online weights.
  void copy_from_online();

  const EmaOptions& options() const { return options_; }

 private:
  EmaOptions options_;
  at::Tensor online_, average_;  // [n], or [length of the slice]
  bool initted_ = false;
  int64_t step_ = 0;
};

}  // namespace dalle2
