// SPDX-License-Identifier: MIT
#include "diffusion/objective.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {
namespace {

class NoiseTarget final : public PredictionTarget {
 public:
  at::Tensor target(const NoiseScheduleImpl&,
                    const at::Tensor&,
                    const at::Tensor&,
                    const at::Tensor& noise) const override {
    return noise;
  }
  at::Tensor x_start(const NoiseScheduleImpl& schedule,
                     const at::Tensor& x_t,
                     const at::Tensor& t,
                     const at::Tensor& prediction) const override {
    return schedule.x_start_from_noise(x_t, t, prediction);
  }
};

class XStartTarget final : public PredictionTarget {
 public:
  at::Tensor target(const NoiseScheduleImpl&,
                    const at::Tensor& x_start,
                    const at::Tensor&,
                    const at::Tensor&) const override {
    return x_start;
  }
  at::Tensor x_start(const NoiseScheduleImpl&,
                     const at::Tensor&,
                     const at::Tensor&,
                     const at::Tensor& prediction) const override {
    return prediction;
  }
};

class VTarget final : public PredictionTarget {
 public:
  at::Tensor target(const NoiseScheduleImpl& schedule,
                    const at::Tensor& x_start,
                    const at::Tensor& t,
                    const at::Tensor& noise) const override {
    return schedule.v(x_start, t, noise);
  }
  at::Tensor x_start(const NoiseScheduleImpl& schedule,
                     const at::Tensor& x_t,
                     const at::Tensor& t,
                     const at::Tensor& prediction) const override {
    return schedule.x_start_from_v(x_t, t, prediction);
  }
};

}  // namespace

std::unique_ptr<PredictionTarget> make_prediction_target(Objective objective) {
  switch (objective) {
    case Objective::eps:
      return std::make_unique<NoiseTarget>();
    case Objective::x_start:
      return std::make_unique<XStartTarget>();
    case Objective::v:
      return std::make_unique<VTarget>();
  }
  broken_invariant(__FILE__, __LINE__, "an objective without a target");
}

}  // namespace dalle2
