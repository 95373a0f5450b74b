// SPDX-License-Identifier: MIT
#include "diffusion/sampler.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dalle2 {
namespace {

// The schedule's acp on the host, so that scalar coefficients need no device.
std::vector<float> on_host(const at::Tensor& buffer) {
  const at::Tensor acp = buffer.cpu().contiguous();
  return {acp.data_ptr<float>(), acp.data_ptr<float>() + acp.numel()};
}

class DdpmSampler final : public Sampler {
 public:
  DdpmSampler(NoiseSchedule schedule, std::optional<LearnedVariance> variance)
      : schedule_(std::move(schedule)), variance_(variance) {}

  std::vector<TimePair> time_pairs() const override {
    std::vector<TimePair> pairs;
    for (int64_t t = schedule_->timesteps() - 1; t >= 0; --t) pairs.push_back({t, t - 1});
    return pairs;
  }

  at::Tensor step(const at::Tensor& x,
                  const at::Tensor& times,
                  const TimePair& pair,
                  const Denoised& denoised,
                  const NoiseSource& noise) override {
    auto [mean, log_variance] = schedule_->q_posterior(denoised.x_start, x, times);
    const at::Tensor n = noise(x.sizes());
    if (pair.time == 0) return mean;
    if (variance_) log_variance = variance_->log_variance(*schedule_, times, denoised.raw_fraction);
    return mean + (0.5 * log_variance).exp() * n;
  }

 private:
  NoiseSchedule schedule_;
  std::optional<LearnedVariance> variance_;
};

class DdimSampler final : public Sampler {
 public:
  DdimSampler(NoiseSchedule schedule, const DdimWalk& walk)
      : schedule_(std::move(schedule)),
        acp_(on_host(walk.previous_levels ? schedule_->alphas_cumprod_prev
                                          : schedule_->alphas_cumprod)),
        pairs_(ddim_time_pairs(schedule_->timesteps(), walk.steps, walk.end)),
        eta_(static_cast<float>(walk.eta)) {}

  std::vector<TimePair> time_pairs() const override { return pairs_; }

  at::Tensor step(const at::Tensor& x,
                  const at::Tensor& times,
                  const TimePair& pair,
                  const Denoised& denoised,
                  const NoiseSource& noise) override {
    if (pair.next < 0) return denoised.x_start;
    const float acp = acp_.at(static_cast<size_t>(pair.time));
    const float acp_next = acp_.at(static_cast<size_t>(pair.next));
    // Single precision on purpose: 1 - acp / acp_next cancels, and the reference rounds the same way.
    const float noise_scale =
        eta_ * std::sqrt((1.0F - acp / acp_next) * (1.0F - acp_next) / (1.0F - acp));
    const float direction_scale = std::sqrt((1.0F - acp_next) - noise_scale * noise_scale);
    const at::Tensor& x_start = denoised.x_start;
    const at::Tensor predicted_noise = denoised.noise.defined()
                                           ? denoised.noise
                                           : schedule_->noise_from_x_start(x, times, x_start);
    const at::Tensor result = x_start * std::sqrt(acp_next) + direction_scale * predicted_noise;
    return pair.next > 0 ? result + noise_scale * noise(x.sizes()) : result;
  }

 private:
  NoiseSchedule schedule_;
  std::vector<float> acp_;
  std::vector<TimePair> pairs_;
  float eta_;
};

class DpmppSampler final : public Sampler {
 public:
  DpmppSampler(const NoiseSchedule& schedule, int64_t steps)
      : acp_(on_host(schedule->alphas_cumprod)), steps_(steps) {}

  // diffusers' "linspace" spacing: T-1 down to 0 in steps + 1 points, without the 0.
  std::vector<TimePair> time_pairs() const override {
    const auto last = static_cast<double>(acp_.size() - 1);
    std::vector<TimePair> pairs;
    for (int64_t i = 0; i < steps_; ++i) {
      const double share = static_cast<double>(steps_ - i) / static_cast<double>(steps_);
      const auto time = static_cast<int64_t>(std::nearbyint(last * share));
      if (!pairs.empty()) pairs.back().next = time;
      pairs.push_back({time, -1});
    }
    return pairs;
  }

  at::Tensor step(const at::Tensor& x,
                  const at::Tensor&,
                  const TimePair& pair,
                  const Denoised& denoised,
                  const NoiseSource&) override {
    if (pair.next < 0) return denoised.x_start;  // sigma 0: the clean image itself
    const Level from = level(pair.time);
    const Level to = level(pair.next);
    const double h = to.lambda - from.lambda;
    at::Tensor estimate = denoised.x_start;
    if (previous_x_start_.defined()) {
      const double inverse_ratio = h / (from.lambda - previous_lambda_);
      estimate = estimate + 0.5 * inverse_ratio * (denoised.x_start - previous_x_start_);
    }
    previous_x_start_ = denoised.x_start;
    previous_lambda_ = from.lambda;
    return (to.sigma / from.sigma) * x - to.alpha * std::expm1(-h) * estimate;
  }

 private:
  struct Level {
    double alpha, sigma, lambda;  // sqrt(acp), sqrt(1 - acp), log(alpha / sigma)
  };
  Level level(int64_t time) const {
    // At zero SNR lambda is infinite and the next step's slope would weigh nothing; diffusers keeps
    // this much of the signal in the solver, and so do we.
    const double acp =
        std::max(std::ldexp(1.0, -24), static_cast<double>(acp_.at(static_cast<size_t>(time))));
    return {std::sqrt(acp), std::sqrt(1 - acp), 0.5 * std::log(acp / (1 - acp))};
  }

  std::vector<float> acp_;
  int64_t steps_;
  at::Tensor previous_x_start_;
  double previous_lambda_ = 0;
};

}  // namespace

NoiseSource noise_source(const NoiseSource& given,
                         const std::vector<at::Generator>& of_rows,
                         const std::optional<at::Generator>& generator,
                         const at::Device& device) {
  if (given) return given;
  if (!of_rows.empty()) {
    return [of_rows, device](at::IntArrayRef shape) {
      D2_CHECK(shape.at(0) == std::ssize(of_rows),
               "noise of {} rows was asked for, there are {}",
               shape.at(0),
               of_rows.size());
      std::vector<at::Tensor> drawn;
      for (const at::Generator& own : of_rows) {
        drawn.push_back(at::randn(shape.slice(1), own, at::TensorOptions(at::kFloat)));
      }
      return at::stack(drawn).to(device);
    };
  }
  return [generator, device](at::IntArrayRef shape) {
    const at::Device home = generator ? generator->device() : device;
    return at::randn(shape, generator, at::TensorOptions(home).dtype(at::kFloat)).to(device);
  };
}

std::vector<TimePair> ddim_time_pairs(int64_t timesteps, int64_t steps, int64_t end) {
  // The grid's rounding decides which integers it hits, so it is the reference's: fp32, truncated.
  const int64_t points = steps + 2 + end;
  const at::Tensor grid =
      at::linspace(end, static_cast<double>(timesteps), points, at::kFloat).to(at::kLong);
  std::vector<TimePair> pairs;
  for (int64_t i = points - 2; i > 0; --i) {
    const TimePair pair{grid[i].item<int64_t>(), grid[i - 1].item<int64_t>()};
    if (pair.time > pair.next) pairs.push_back(pair);
  }
  return pairs;
}

std::unique_ptr<Sampler> make_ddpm_sampler(const NoiseSchedule& schedule,
                                           std::optional<LearnedVariance> variance) {
  return std::make_unique<DdpmSampler>(schedule, variance);
}

std::unique_ptr<Sampler> make_ddim_sampler(const NoiseSchedule& schedule, const DdimWalk& walk) {
  return std::make_unique<DdimSampler>(schedule, walk);
}

at::Tensor ddim_noise(const DdimLayout& layout,
                      const NoiseScheduleImpl& schedule,
                      Objective objective,
                      const at::Tensor& x,
                      const at::Tensor& times,
                      const at::Tensor& prediction,
                      const at::Tensor& raw) {
  using enum DdimLayout::Noise;
  if (objective == Objective::eps) return layout.predicted_noise ? prediction : at::Tensor();
  if (objective != Objective::x_start || layout.of_x_start == of_clipped) return {};
  const at::Tensor noise = schedule.noise_from_x_start(x, times, raw);
  return layout.of_x_start == negative_of_raw ? -noise : noise;
}

std::unique_ptr<Sampler> make_dpmpp_sampler(const NoiseSchedule& schedule, int64_t steps) {
  return std::make_unique<DpmppSampler>(schedule, steps);
}

at::Tensor rescale_guidance(const at::Tensor& guided, const at::Tensor& conditional, double share) {
  const auto spread = [](const at::Tensor& x) { return x.std({1, 2, 3}, true, /*keepdim=*/true); };
  const at::Tensor rescaled = guided * (spread(conditional) / spread(guided));
  return share * rescaled + (1 - share) * guided;
}

at::Tensor dynamic_threshold(const at::Tensor& x_start, double percentile) {
  constexpr int64_t kMostAtOnce = int64_t{1} << 23;  // at::quantile refuses more than 2^24 values
  const at::Tensor magnitudes = x_start.flatten(1).abs();
  const int64_t rows = std::max<int64_t>(1, kMostAtOnce / magnitudes.size(1));
  std::vector<at::Tensor> thresholds;
  for (const at::Tensor& part : magnitudes.split(rows)) {
    thresholds.push_back(at::quantile(part, percentile, /*dim=*/1));
  }
  const at::Tensor s = at::cat(thresholds).clamp_min(1).view({-1, 1, 1, 1});
  return at::minimum(at::maximum(x_start, -s), s) / s;
}

}  // namespace dalle2
