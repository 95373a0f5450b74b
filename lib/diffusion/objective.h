// SPDX-License-Identifier: MIT
// What the network's output means: the noise, the clean image, or v.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "config/reading/types.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// One reading of the network's output, chosen when the decoder is built.
class PredictionTarget {
 public:
  virtual ~PredictionTarget() = default;

  /// What the network should have said. [B, C, H, W]
  virtual at::Tensor target(const NoiseScheduleImpl& schedule,
                            const at::Tensor& x_start,
                            const at::Tensor& t,
                            const at::Tensor& noise) const = 0;

  /// The clean image that `prediction` at x_t implies, not clipped. [B, C, H, W]
  virtual at::Tensor x_start(const NoiseScheduleImpl& schedule,
                             const at::Tensor& x_t,
                             const at::Tensor& t,
                             const at::Tensor& prediction) const = 0;
};

std::unique_ptr<PredictionTarget> make_prediction_target(Objective objective);

}  // namespace dalle2
