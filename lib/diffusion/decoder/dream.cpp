// SPDX-License-Identifier: MIT
#include "diffusion/decoder/dream.h"

#include <torch/torch.h>

#include "base/error.h"
#include "config/decoder/plan_rules.h"
#include "diffusion/decoder/pass_scopes.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {
namespace {

class NoDream final : public Dream {
 public:
  TrainingPair rectify(const NoiseScheduleImpl&,
                       const TrainingPair& pair,
                       const at::Tensor&,
                       const at::Tensor&,
                       const Predictor&) const override {
    return pair;
  }
};

class NoiseDream final : public Dream {
 public:
  explicit NoiseDream(double detail_preservation) : detail_preservation_(detail_preservation) {}

  TrainingPair rectify(const NoiseScheduleImpl& schedule,
                       const TrainingPair& pair,
                       const at::Tensor& t,
                       const at::Tensor& noise,
                       const Predictor& predict) const override {
    const NoGradPass no_grad;
    const at::Tensor sigma = at_times(schedule.sqrt_one_minus_alphas_cumprod, t, noise);
    const at::Tensor lambda = sigma.pow(detail_preservation_);
    const at::Tensor error = lambda * (noise - predict(pair.x_t));
    return {pair.x_t + sigma * error, pair.target + error};
  }

 private:
  double detail_preservation_;
};

}  // namespace

std::unique_ptr<Dream> make_dream(const DreamConfig& config, Objective objective) {
  if (!config.enabled) return std::make_unique<NoDream>();
  if (const std::optional<std::string> fault = dream_fault(objective)) {
    throw ConfigError("{}: set dream.enabled to false, or predict the noise", *fault);
  }
  return std::make_unique<NoiseDream>(config.detail_preservation);
}

}  // namespace dalle2
