// SPDX-License-Identifier: MIT
#include "diffusion/decoder/learned_variance.h"

#include <torch/torch.h>

#include <cmath>
#include <numbers>

namespace dalle2 {
namespace {

constexpr double kBitsPerNat = 1 / std::numbers::ln2;

at::Tensor approximate_standard_normal_cdf(const at::Tensor& z) {
  // Beyond +-10 this is 0 or 1 even in fp64. The cube of far larger values overflows, and its
  // gradient is NaN.
  const at::Tensor x = z.clamp(-100, 100);
  return 0.5 * (1 + at::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x.pow(3))));
}

}  // namespace

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
