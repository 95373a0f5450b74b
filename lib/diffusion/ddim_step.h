// SPDX-License-Identifier: MIT
// One step of DDIM, which the decoder's and the prior's samplers share.
#pragma once

#include <ATen/core/Tensor.h>

#include "diffusion/noise_schedule.h"
#include "diffusion/sampler.h"

namespace dalle2 {

struct DdimLevels {
  float acp = 0;       ///< alphas_cumprod of the state the step begins with
  float acp_next = 0;  ///< and of the one it leads to
  float eta = 0;       ///< 0 is deterministic
};

/// Song et al. 2020, eq. 12 and 16. @param x, x_start [B, ...]; times [B] int64 of x
/// @param noise null adds none
at::Tensor ddim_step(const NoiseScheduleImpl& schedule,
                     const at::Tensor& x,
                     const at::Tensor& times,
                     const at::Tensor& x_start,
                     const DdimLevels& levels,
                     const NoiseSource* noise);

}  // namespace dalle2
