// SPDX-License-Identifier: MIT
// Averages whose length is chosen after training (Karras et al. 2024, arXiv 2312.02696, section 3).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "optim/flat_parameters.h"
#include "optim/flat_slice.h"

namespace dalle2 {

/// The widest average there is: gamma is 0, and all steps weigh the same.
inline constexpr double kWidestSigma = 0.288;

/// Exponent of the power-function average whose standard deviation is `sigma` of the training time:
/// the gamma >= 0 with sigma^2 = (gamma + 1) (gamma + 2)^-2 (gamma + 3)^-1 (algorithm 2).
/// @throws ConfigError outside 0 < sigma <= kWidestSigma
double gamma_of_sigma(double sigma);

/// The mean of a module's weights over the steps tau = 1 ... t, weighted by tau^gamma: after step t
/// the average keeps (1 - 1/t)^(gamma + 1) of itself (eq. 4).
class PowerEma {
 public:
  /// @throws ConfigError as gamma_of_sigma() does
  PowerEma(const FlatParameters& online, double sigma);

  /// Call after every optimizer step.
  void update();
  /// Forgets all steps.
  void begin_anew();
  /// From now on averages this stretch of the buffer alone: the rest is others' work.
  void keep_slice(const FlatSlice& slice);

  double sigma() const { return sigma_; }
  double gamma() const { return gamma_; }
  int64_t step() const { return step_; }         ///< calls of update()
  void set_step(int64_t step) { step_ = step; }  ///< of a checkpoint
  /// [n] laid out as the online weights, or [length] of the slice.
  const at::Tensor& values() const { return average_; }

 private:
  double sigma_, gamma_;
  at::Tensor online_, average_;  // [n], or [length of the slice]
  int64_t step_ = 0;
};

/// The weights over the steps 1 ... `step` of an average.
struct PowerProfile {
  int64_t step = 0;
  double gamma = 0.0;
};

struct PostHocWeights {
  std::vector<double> weights;  ///< one a snapshot
  double missed = 0.0;          ///< |wanted profile - combined profile| / |wanted profile|, L2
};

/// The combination of saved averages whose profile comes nearest to the wanted one, by least
/// squares (algorithm 3).
/// @throws std::logic_error without snapshots, or for a step below 1
PostHocWeights post_hoc_weights(const std::vector<PowerProfile>& snapshots,
                                const PowerProfile& wanted);

}  // namespace dalle2
