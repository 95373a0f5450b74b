// SPDX-License-Identifier: MIT
// What the network's output means: the noise, the clean image, or v.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/reading/types.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// One reading of the network's output, chosen when the decoder is built.
struct PredictionTarget {
  Objective objective = Objective::eps;

  /// What the network should have said. [B, C, H, W]
  at::Tensor target(const NoiseScheduleImpl& schedule,
                    const at::Tensor& x_start,
                    const at::Tensor& t,
                    const at::Tensor& noise) const;

  /// The clean image that `prediction` at x_t implies, not clipped. [B, C, H, W]
  at::Tensor x_start(const NoiseScheduleImpl& schedule,
                     const at::Tensor& x_t,
                     const at::Tensor& t,
                     const at::Tensor& prediction) const;
};

}  // namespace dalle2
