// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include <numbers>

#include "base/error.h"
#include "config/shared/train_rules.h"
#include "diffusion/noise_schedule.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

double needed(const std::optional<double>& value, const char* key) {
  if (!value) {
    throw ConfigError(
        "timestep_sampling: expected a number for {}, which the scheme needs, got null", key);
  }
  return *value;
}

at::Tensor add(const at::Tensor& noise, double strength, const at::Tensor& normals) {
  if (strength == 0) return noise;
  D2_CHECK(normals.defined(), "an augmentation of the noise without its draws");
  return noise + strength * normals;
}

// Below it sigma^-2 would let single samples outweigh all others.
constexpr double kLeastSigma = 1e-3;

}  // namespace

at::Tensor logit_normal_density(const at::Tensor& normals, double mean, double std) {
  return at::sigmoid(normals * std + mean);
}

at::Tensor mode_density(const at::Tensor& uniforms, double scale) {
  const at::Tensor bump = at::cos(uniforms * (std::numbers::pi / 2)).square() - 1 + uniforms;
  return 1 - uniforms - scale * bump;
}

at::Tensor times_of(const at::Tensor& u, int64_t timesteps) {
  const at::Tensor index = (u * static_cast<double>(timesteps)).floor().to(at::kLong);
  return timesteps - 1 - index.clamp(0, timesteps - 1);
}

TimestepDensity::TimestepDensity(const TimestepSamplingConfig& config) : scheme_(config.scheme) {
  if (scheme_ == TimestepScheme::logit_normal) {
    mean_ = needed(config.logit_mean, "logit_mean");
    std_ = needed(config.logit_std, "logit_std");
  }
  if (scheme_ == TimestepScheme::mode) mode_scale_ = needed(config.mode_scale, "mode_scale");
}

at::Tensor TimestepDensity::draw(int64_t batch, int64_t timesteps, at::Generator generator) const {
  const at::TensorOptions options(generator.device());
  const auto floats = options.dtype(at::kFloat);
  switch (scheme_) {
    case TimestepScheme::uniform:
      return at::randint(0, timesteps, {batch}, std::move(generator), options.dtype(at::kLong));
    case TimestepScheme::logit_normal:
      return times_of(logit_normal_density(at::randn({batch}, generator, floats), mean_, std_),
                      timesteps);
    case TimestepScheme::mode:
      return times_of(mode_density(at::rand({batch}, generator, floats), mode_scale_), timesteps);
  }
  broken_invariant(__FILE__, __LINE__, "a timestep scheme without a density");
}

NoiseAugmentationDraws NoiseAugmentation::draw(at::IntArrayRef sizes,
                                               at::Generator generator) const {
  const auto options = at::TensorOptions(generator.device()).dtype(at::kFloat);
  NoiseAugmentationDraws draws;
  if (offset != 0) draws.offset = at::randn({sizes[0], sizes[1], 1, 1}, generator, options);
  if (perturbation != 0) draws.perturbation = at::randn(sizes, generator, options);
  return draws;
}

at::Tensor NoiseAugmentation::target_noise(const at::Tensor& noise,
                                           const NoiseAugmentationDraws& draws) const {
  return add(noise, offset, draws.offset);
}

at::Tensor NoiseAugmentation::input_noise(const at::Tensor& target_noise,
                                          const NoiseAugmentationDraws& draws) const {
  return add(target_noise, perturbation, draws.perturbation);
}

at::Tensor signal_to_noise(const NoiseScheduleImpl& schedule, const at::Tensor& t) {
  const at::Tensor acp = schedule.alphas_cumprod.index({t});
  return (acp.sqrt() / (1 - acp).sqrt()).square();
}

at::Tensor min_snr_weights(const at::Tensor& snr, double gamma, Objective objective) {
  const at::Tensor clipped = snr.clamp_max(gamma);
  switch (objective) {
    case Objective::eps:
      return at::where(snr > 0, clipped / snr, at::ones_like(snr));
    case Objective::v:
      return clipped / (snr + 1);
    case Objective::x_start:
      return clipped;
  }
  broken_invariant(__FILE__, __LINE__, "an objective without a min-SNR weight");
}

at::Tensor noise_share(const NoiseScheduleImpl& schedule, const at::Tensor& t) {
  const at::Tensor signal = schedule.sqrt_alphas_cumprod.gather(0, t);
  const at::Tensor noise = schedule.sqrt_one_minus_alphas_cumprod.gather(0, t);
  return noise / (signal + noise);
}

at::Tensor sigma_weights(LossWeighting weighting, const at::Tensor& sigmas) {
  switch (weighting) {
    case LossWeighting::none:
      return at::ones_like(sigmas);
    case LossWeighting::sigma_sqrt:
      return sigmas.pow(-2.0).to(at::kFloat);
    case LossWeighting::cosmap:
      return 2 / (std::numbers::pi * (1 - 2 * sigmas + 2 * sigmas.square()));
  }
  broken_invariant(__FILE__, __LINE__, "a loss weighting without a formula");
}

at::Tensor pixel_loss(LossType kind, const at::Tensor& prediction, const at::Tensor& target) {
  const auto of_pixels = [&] {
    switch (kind) {
      case LossType::l1:
        return at::l1_loss(prediction, target, at::Reduction::None);
      case LossType::l2:
        return at::mse_loss(prediction, target, at::Reduction::None);
      case LossType::huber:
        return at::smooth_l1_loss(prediction, target, at::Reduction::None, /*beta=*/1.0);
    }
    broken_invariant(__FILE__, __LINE__, "a loss type without a formula");
  };
  return of_pixels().flatten(1).mean(1);
}

LossWeight::LossWeight(const LossPlan& plan,
                       double p2_gamma,
                       Objective objective,
                       NoiseSchedule schedule)
    : plan_(plan), is_p2_(p2_gamma > 0), objective_(objective), schedule_(std::move(schedule)) {
  if (plan.min_snr_gamma && is_p2_) {
    throw ConfigError(
        "loss weights: expected min-SNR or p2, got min_snr_gamma {} and p2_loss_weight_gamma {}",
        *plan.min_snr_gamma,
        p2_gamma);
  }
}

at::Tensor LossWeight::weigh(const at::Tensor& losses, const at::Tensor& t) const {
  at::Tensor weighed = losses;
  if (is_p2_) weighed = weighed * schedule_->p2_loss_weight.gather(0, t);
  if (const auto& gamma = plan_.min_snr_gamma) {
    weighed = weighed * min_snr_weights(signal_to_noise(*schedule_, t), *gamma, objective_);
  }
  if (plan_.weighting == LossWeighting::none) return weighed;
  const at::Tensor sigmas = noise_share(*schedule_, t).clamp_min(kLeastSigma);
  return weighed * sigma_weights(plan_.weighting, sigmas);
}

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
