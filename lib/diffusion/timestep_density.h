// SPDX-License-Identifier: MIT
// How the times of a training step are drawn (Esser et al. 2024, section 3.1).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/shared/loss_config.h"

namespace dalle2 {

/// u = sigmoid(mean + std * normal). Any shape.
at::Tensor logit_normal_density(const at::Tensor& normals, double mean, double std);

/// u = 1 - v - scale * (cos^2(pi v / 2) - 1 + v): v = 0 gives 1, v = 1 gives 0. Any shape.
at::Tensor mode_density(const at::Tensor& uniforms, double scale);

/// Time T - 1 - floor(u T) of u in [0, 1], kept in [0, T): u near 0 is the noisiest. int64
at::Tensor times_of(const at::Tensor& u, int64_t timesteps);

/// The scheme that the config names.
class TimestepDensity {
 public:
  /// @throws ConfigError if a parameter of the scheme is null
  explicit TimestepDensity(const TimestepSamplingConfig& config);
  /// Times in [0, timesteps). @return [batch] int64 on the generator's device
  at::Tensor draw(int64_t batch, int64_t timesteps, at::Generator generator) const;

 private:
  TimestepScheme scheme_;
  double mean_ = 0, std_ = 0, mode_scale_ = 0;
};

}  // namespace dalle2
