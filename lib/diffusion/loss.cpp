// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "model/pass_scopes.h"

namespace dalle2 {
namespace {

// Below it sigma^-2 would let single samples outweigh all others.
constexpr double kLeastSigma = 1e-3;

constexpr double kBitsPerNat = 1 / std::numbers::ln2;

at::Tensor approximate_standard_normal_cdf(const at::Tensor& z) {
  // Beyond +-10 this is 0 or 1 even in fp64. The cube of far larger values overflows, and its
  // gradient is NaN.
  const at::Tensor x = z.clamp(-100, 100);
  return 0.5 * (1 + at::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))));
}

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
  if (const auto& gamma = plan.min_snr_gamma)
    result = result * min_snr_weights(signal_to_noise(schedule, t), *gamma, objective);
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

at::Tensor normal_kl(const at::Tensor& mean1,
                     const at::Tensor& log_variance1,
                     const at::Tensor& mean2,
                     const at::Tensor& log_variance2) {
  return 0.5 * (-1 + log_variance2 - log_variance1 + at::exp(log_variance1 - log_variance2) +
                (mean1 - mean2).square() * at::exp(-log_variance2));
}

at::Tensor discretized_gaussian_log_likelihood(const at::Tensor& x,
                                               const at::Tensor& means,
                                               const at::Tensor& log_scales) {
  constexpr double kEdge = 0.999;  // beyond it a pixel is the first or last of the 256 levels
  constexpr double kHalfLevel = 1.0 / 255;
  // The reference's value for each type: narrow ones cannot hold 1e-12.
  const double smallest = x.scalar_type() == at::kFloat ? 1e-12 : 1e-3;
  const auto safe_log = [smallest](const at::Tensor& p) { return p.clamp_min(smallest).log(); };

  const at::Tensor centered = x - means;
  const at::Tensor inverse_scale = at::exp(-log_scales);
  const at::Tensor upper = approximate_standard_normal_cdf(inverse_scale * (centered + kHalfLevel));
  const at::Tensor lower = approximate_standard_normal_cdf(inverse_scale * (centered - kHalfLevel));
  return at::where(x < -kEdge,
                   safe_log(upper),
                   at::where(x > kEdge, safe_log(1 - lower), safe_log(upper - lower)));
}

std::pair<at::Tensor, at::Tensor> split_output(const at::Tensor& output, bool learned_variance) {
  if (!learned_variance) return {output, {}};
  const int64_t channels = output.size(1) / 2;
  return {output.narrow(1, 0, channels), output.narrow(1, channels, channels)};
}

at::Tensor LearnedVariance::log_variance(const NoiseScheduleImpl& schedule,
                                         const at::Tensor& t,
                                         const at::Tensor& raw_fraction) const {
  const at::Tensor low = at_times(schedule.posterior_log_variance_clipped, t, raw_fraction);
  const at::Tensor high = at_times(schedule.betas, t, raw_fraction).log();
  at::Tensor fraction = (raw_fraction + 1) * 0.5;
  if (constrain_frac) fraction = fraction.sigmoid();
  return fraction * high + (1 - fraction) * low;
}

at::Tensor LearnedVariance::bound(const NoiseScheduleImpl& schedule,
                                  const at::Tensor& x_start,
                                  const at::Tensor& x_t,
                                  const at::Tensor& t,
                                  const at::Tensor& model_x_start,
                                  const at::Tensor& raw_fraction) const {
  const auto truth = schedule.q_posterior(x_start, x_t, t);
  const at::Tensor model_mean = schedule.q_posterior(model_x_start.detach(), x_t, t).mean;
  const at::Tensor model_log_variance = log_variance(schedule, t, raw_fraction);
  // Each sample takes one of the two terms. The other must not overflow either: where() would make
  // NaN of its gradient, so it is computed from a harmless variance.
  const at::Tensor first = (t == 0).view({-1, 1, 1, 1});
  const at::Tensor kl = normal_kl(truth.mean,
                                  truth.log_variance,
                                  model_mean,
                                  at::where(first, truth.log_variance, model_log_variance))
                            .flatten(1)
                            .mean(1);
  const at::Tensor log_scales =
      0.5 * at::where(first, model_log_variance, at::zeros_like(model_log_variance));
  const at::Tensor nll =
      -discretized_gaussian_log_likelihood(x_start, model_mean, log_scales).flatten(1).mean(1);
  return at::where(t == 0, nll, kl) * kBitsPerNat;
}

}  // namespace dalle2
