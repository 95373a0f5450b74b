// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include <numbers>

#include "base/error.h"

namespace dalle2 {
namespace {

// Below it sigma^-2 would let single samples outweigh all others.
constexpr double kLeastSigma = 1e-3;

}  // namespace

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

}  // namespace dalle2
