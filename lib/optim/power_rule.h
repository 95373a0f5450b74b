// SPDX-License-Identifier: MIT
// Averages whose length is chosen after training (Karras et al. 2024, arXiv 2312.02696, section 3).
#pragma once

#include <cstdint>
#include <vector>

#include "optim/average_rule.h"

namespace dalle2 {

/// The widest average there is: gamma is 0, and all steps weigh the same.
inline constexpr double kWidestSigma = 0.288;

/// Exponent of the power-function average whose standard deviation is `sigma` of the training time:
/// the gamma >= 0 with sigma^2 = (gamma + 1) (gamma + 2)^-2 (gamma + 3)^-1 (algorithm 2).
/// @throws ConfigError outside 0 < sigma <= kWidestSigma
double gamma_of_sigma(double sigma);

/// The mean of the weights over the steps tau = 1 ... t, weighted by tau^gamma: after step t the
/// average keeps (1 - 1/t)^(gamma + 1) of itself (eq. 4).
class PowerRule : public AverageRule {
 public:
  /// @throws ConfigError as gamma_of_sigma() does
  explicit PowerRule(double sigma) : sigma_(sigma), gamma_(gamma_of_sigma(sigma)) {}
  void update(const at::Tensor& average,
              const at::Tensor& weights,
              const at::Tensor& skipped = {}) const override;
  double decay() const override;

  double sigma() const { return sigma_; }
  double gamma() const { return gamma_; }

 private:
  double sigma_, gamma_;
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
