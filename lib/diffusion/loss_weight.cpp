// SPDX-License-Identifier: MIT
#include "diffusion/loss_weight.h"

#include <torch/torch.h>

#include <numbers>
#include <vector>

#include "base/error.h"

namespace dalle2 {
namespace {

// Below it sigma^-2 would let single samples outweigh all others.
constexpr double kLeastSigma = 1e-3;

class EqualWeight final : public LossWeight {
 public:
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor&) const override { return losses; }
};

class P2Weight final : public LossWeight {
 public:
  explicit P2Weight(NoiseSchedule schedule) : schedule_(std::move(schedule)) {}
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const override {
    return losses * schedule_->p2_loss_weight.gather(0, t);
  }

 private:
  NoiseSchedule schedule_;
};

class MinSnrWeight final : public LossWeight {
 public:
  MinSnrWeight(NoiseSchedule schedule, double gamma, Objective objective)
      : schedule_(std::move(schedule)), gamma_(gamma), objective_(objective) {}
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const override {
    return losses * min_snr_weights(signal_to_noise(*schedule_, t), gamma_, objective_);
  }

 private:
  NoiseSchedule schedule_;
  double gamma_;
  Objective objective_;
};

class SigmaWeight final : public LossWeight {
 public:
  SigmaWeight(NoiseSchedule schedule, LossWeighting weighting)
      : schedule_(std::move(schedule)), weighting_(weighting) {}
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const override {
    return losses * sigma_weights(weighting_, noise_share(*schedule_, t).clamp_min(kLeastSigma));
  }

 private:
  NoiseSchedule schedule_;
  LossWeighting weighting_;
};

class ProductWeight final : public LossWeight {
 public:
  explicit ProductWeight(std::vector<std::unique_ptr<LossWeight>> factors)
      : factors_(std::move(factors)) {}
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const override {
    at::Tensor weighed = losses;
    for (const auto& factor : factors_) weighed = factor->weigh(weighed, t);
    return weighed;
  }

 private:
  std::vector<std::unique_ptr<LossWeight>> factors_;
};

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

std::unique_ptr<LossWeight> make_p2_loss_weight(double gamma, const NoiseSchedule& schedule) {
  if (gamma > 0) return std::make_unique<P2Weight>(schedule);
  return std::make_unique<EqualWeight>();
}

std::unique_ptr<LossWeight> make_loss_weight(const LossPlan& plan,
                                             double p2_gamma,
                                             Objective objective,
                                             const NoiseSchedule& schedule) {
  if (plan.min_snr_gamma && p2_gamma > 0) {
    throw ConfigError(
        "loss weights: expected min-SNR or p2, got min_snr_gamma {} and p2_loss_weight_gamma {}",
        *plan.min_snr_gamma,
        p2_gamma);
  }
  std::vector<std::unique_ptr<LossWeight>> factors;
  if (plan.min_snr_gamma) {
    factors.push_back(std::make_unique<MinSnrWeight>(schedule, *plan.min_snr_gamma, objective));
  } else {
    factors.push_back(make_p2_loss_weight(p2_gamma, schedule));
  }
  if (plan.weighting == LossWeighting::none) return std::move(factors.front());
  factors.push_back(std::make_unique<SigmaWeight>(schedule, plan.weighting));
  return std::make_unique<ProductWeight>(std::move(factors));
}

}  // namespace dalle2
