// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include <numbers>

#include "base/error.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

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

at::Tensor draw_times(const TimestepSamplingConfig& config,
                      int64_t batch,
                      int64_t timesteps,
                      at::Generator generator) {
  const at::TensorOptions options(generator.device());
  const auto floats = options.dtype(at::kFloat);
  switch (config.scheme) {
    case TimestepScheme::uniform:
      return at::randint(0, timesteps, {batch}, std::move(generator), options.dtype(at::kLong));
    case TimestepScheme::logit_normal:
      return times_of(
          logit_normal_density(
              at::randn({batch}, generator, floats), config.logit_mean, config.logit_std),
          timesteps);
    case TimestepScheme::mode:
      return times_of(mode_density(at::rand({batch}, generator, floats), config.mode_scale),
                      timesteps);
  }
  broken_invariant(__FILE__, __LINE__, "a timestep scheme without a density");
}

NoiseAugmentationDraws draw_augmentation(const LossPlan& plan,
                                         at::IntArrayRef sizes,
                                         const at::Generator& generator,
                                         const at::Device& device) {
  const auto normals = [&](double strength, at::IntArrayRef shape) {
    if (strength == 0) return at::Tensor();
    const auto options = at::TensorOptions(generator.device()).dtype(at::kFloat);
    return at::randn(shape, generator, options).to(device);
  };
  NoiseAugmentationDraws draws;
  draws.offset = normals(plan.noise_offset, {sizes[0], sizes[1], 1, 1});
  draws.perturbation = normals(plan.input_perturbation, sizes);
  return draws;
}

AugmentedNoise augmented_noise(const LossPlan& plan,
                               const at::Tensor& noise,
                               const NoiseAugmentationDraws& draws) {
  AugmentedNoise made{noise, noise};
  if (plan.noise_offset != 0) made.target = made.input = noise + plan.noise_offset * draws.offset;
  if (plan.input_perturbation != 0)
    made.input = made.target + plan.input_perturbation * draws.perturbation;
  return made;
}

at::Tensor signal_to_noise(const NoiseScheduleImpl& schedule, const at::Tensor& t) {
  const at::Tensor acp = schedule.alphas_cumprod.index({t});
  return (acp.sqrt() / (1 - acp).sqrt()).square();
}

at::Tensor min_snr_weights(const at::Tensor& snr, double gamma, Objective objective) {
  const at::Tensor clipped = snr.clamp_max(gamma);
  if (objective == Objective::x_start) return clipped;
  if (objective == Objective::v) return clipped / (snr + 1);
  return at::where(snr > 0, clipped / snr, at::ones_like(snr));
}

at::Tensor noise_share(const NoiseScheduleImpl& schedule, const at::Tensor& t) {
  const at::Tensor signal = schedule.sqrt_alphas_cumprod.gather(0, t);
  const at::Tensor noise = schedule.sqrt_one_minus_alphas_cumprod.gather(0, t);
  return noise / (signal + noise);
}

at::Tensor sigma_weights(LossWeighting weighting, const at::Tensor& sigmas) {
  if (weighting == LossWeighting::none) return at::ones_like(sigmas);
  if (weighting == LossWeighting::sigma_sqrt) return sigmas.pow(-2.0).to(at::kFloat);
  return 2 / (std::numbers::pi * (1 - 2 * sigmas + 2 * sigmas.square()));
}

at::Tensor pixel_loss(LossType kind, const at::Tensor& prediction, const at::Tensor& target) {
  constexpr auto kEach = at::Reduction::None;
  const at::Tensor of_pixels = kind == LossType::l1 ? at::l1_loss(prediction, target, kEach)
                               : kind == LossType::l2
                                   ? at::mse_loss(prediction, target, kEach)
                                   : at::smooth_l1_loss(prediction, target, kEach, /*beta=*/1.0);
  return of_pixels.flatten(1).mean(1);
}

at::Tensor weighed(const LossPlan& plan,
                   double p2_gamma,
                   Objective objective,
                   const NoiseScheduleImpl& schedule,
                   const at::Tensor& losses,
                   const at::Tensor& t) {
  at::Tensor result = losses;
  if (p2_gamma > 0) result = result * schedule.p2_loss_weight.gather(0, t);
  if (const auto& gamma = plan.min_snr_gamma) {
    result = result * min_snr_weights(signal_to_noise(schedule, t), *gamma, objective);
  }
  if (plan.weighting == LossWeighting::none) return result;
  const at::Tensor sigmas = noise_share(schedule, t).clamp_min(kLeastSigma);
  return result * sigma_weights(plan.weighting, sigmas);
}

TrainingPair dreamed(const DreamConfig& config,
                     const NoiseScheduleImpl& schedule,
                     const TrainingPair& pair,
                     const at::Tensor& t,
                     const at::Tensor& noise,
                     const Predictor& predict) {
  if (!config.enabled) return pair;
  const NoGradPass no_grad;
  const at::Tensor sigma = at_times(schedule.sqrt_one_minus_alphas_cumprod, t, noise);
  const at::Tensor lambda = sigma.pow(config.detail_preservation);
  const at::Tensor error = lambda * (noise - predict(pair.x_t));
  return {pair.x_t + sigma * error, pair.target + error};
}

}  // namespace dalle2
