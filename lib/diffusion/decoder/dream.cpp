// SPDX-License-Identifier: MIT
#include "diffusion/decoder/dream.h"

#include <torch/torch.h>

#include "base/error.h"
#include "config/decoder/plan_rules.h"
#include "diffusion/noise_schedule.h"
#include "model/pass_scopes.h"

namespace dalle2 {

Dream::Dream(const DreamConfig& config, Objective objective) : config_(config) {
  if (!config.enabled) return;
  if (const std::optional<std::string> fault = dream_fault(objective)) {
    throw ConfigError("{}: set dream.enabled to false, or predict the noise", *fault);
  }
}

TrainingPair Dream::rectify(const NoiseScheduleImpl& schedule,
                            const TrainingPair& pair,
                            const at::Tensor& t,
                            const at::Tensor& noise,
                            const Predictor& predict) const {
  if (!config_.enabled) return pair;
  const NoGradPass no_grad;
  const at::Tensor sigma = at_times(schedule.sqrt_one_minus_alphas_cumprod, t, noise);
  const at::Tensor lambda = sigma.pow(config_.detail_preservation);
  const at::Tensor error = lambda * (noise - predict(pair.x_t));
  return {pair.x_t + sigma * error, pair.target + error};
}

}  // namespace dalle2
