// SPDX-License-Identifier: MIT
#include "diffusion/objective.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {

at::Tensor PredictionTarget::target(const NoiseScheduleImpl& schedule,
                                    const at::Tensor& x_start,
                                    const at::Tensor& t,
                                    const at::Tensor& noise) const {
  switch (objective) {
    case Objective::eps:
      return noise;
    case Objective::x_start:
      return x_start;
    case Objective::v:
      return schedule.v(x_start, t, noise);
  }
  broken_invariant(__FILE__, __LINE__, "an objective without a target");
}

at::Tensor PredictionTarget::x_start(const NoiseScheduleImpl& schedule,
                                     const at::Tensor& x_t,
                                     const at::Tensor& t,
                                     const at::Tensor& prediction) const {
  switch (objective) {
    case Objective::eps:
      return schedule.x_start_from_noise(x_t, t, prediction);
    case Objective::x_start:
      return prediction;
    case Objective::v:
      return schedule.x_start_from_v(x_t, t, prediction);
  }
  broken_invariant(__FILE__, __LINE__, "an objective without a clean image");
}

}  // namespace dalle2
