// SPDX-License-Identifier: MIT
#include "diffusion/noise_schedule.h"

#include <torch/torch.h>

#include "base/error.h"
#include "config/shared/train_rules.h"

namespace dalle2 {
namespace {

// [T] fp64; jsd in fp32, in which the reference computes all of it.
at::Tensor betas_of(const NoiseScheduleOptions& options) {
  std::vector<double> values = beta_schedule_values(options.kind, options.timesteps);
  const at::Tensor betas = at::tensor(values, at::kDouble);
  return options.kind == BetaSchedule::jsd ? betas.to(at::kFloat) : betas;
}

}  // namespace

at::Tensor rescale_zero_terminal_snr(const at::Tensor& betas) {
  at::Tensor root = (1 - betas).cumprod(0).sqrt();
  const at::Tensor first = root[0].clone();
  const at::Tensor last = root[-1].clone();
  root = (root - last) * (first / (first - last));
  const at::Tensor acp = root.square();
  const at::Tensor alphas = at::cat({acp.slice(0, 0, 1), acp.slice(0, 1) / acp.slice(0, 0, -1)});
  return 1 - alphas;
}

NoiseScheduleImpl::NoiseScheduleImpl(const NoiseScheduleOptions& options)
    : timesteps_(options.timesteps) {
  at::Tensor high = betas_of(options);
  D2_CHECK(high.max().item<double>() <= 1, "a noise schedule with a beta above 1");
  if (options.zero_terminal_snr) high = rescale_zero_terminal_snr(high);
  register_buffers(high, options);
  zero_terminal_snr_ = alphas_cumprod[-1].item<float>() == 0.0F;
}

void NoiseScheduleImpl::register_buffers(const at::Tensor& b, const NoiseScheduleOptions& options) {
  const auto add = [this](const char* name, const at::Tensor& value) {
    return register_buffer(name, value.to(at::kFloat).contiguous());
  };
  const at::Tensor alphas = 1 - b;
  const at::Tensor acp = alphas.cumprod(0);
  const at::Tensor acp_prev = at::cat({at::ones({1}, acp.options()), acp.slice(0, 0, -1)});
  const at::Tensor variance = b * (1 - acp_prev) / (1 - acp);

  betas = add("betas", b);
  alphas_cumprod = add("alphas_cumprod", acp);
  alphas_cumprod_prev = add("alphas_cumprod_prev", acp_prev);
  sqrt_alphas_cumprod = add("sqrt_alphas_cumprod", acp.sqrt());
  sqrt_one_minus_alphas_cumprod = add("sqrt_one_minus_alphas_cumprod", (1 - acp).sqrt());
  log_one_minus_alphas_cumprod = add("log_one_minus_alphas_cumprod", (1 - acp).log());
  sqrt_recip_alphas_cumprod = add("sqrt_recip_alphas_cumprod", (1 / acp).sqrt());
  sqrt_recipm1_alphas_cumprod = add("sqrt_recipm1_alphas_cumprod", (1 / acp - 1).sqrt());
  posterior_variance = add("posterior_variance", variance);
  // The variance is 0 at the first step.
  posterior_log_variance_clipped =
      add("posterior_log_variance_clipped", variance.clamp_min(1e-20).log());
  posterior_mean_coef1 = add("posterior_mean_coef1", b * acp_prev.sqrt() / (1 - acp));
  posterior_mean_coef2 = add("posterior_mean_coef2", (1 - acp_prev) * alphas.sqrt() / (1 - acp));
  p2_loss_weight =
      add("p2_loss_weight",
          (options.p2_loss_weight_k + acp / (1 - acp)).pow(-options.p2_loss_weight_gamma));
}

at::Tensor NoiseScheduleImpl::q_sample(const at::Tensor& x_start,
                                       const at::Tensor& t,
                                       const at::Tensor& noise) const {
  return at_times(sqrt_alphas_cumprod, t, x_start) * x_start +
         at_times(sqrt_one_minus_alphas_cumprod, t, x_start) * noise;
}

at::Tensor NoiseScheduleImpl::q_sample_from_to(const at::Tensor& x_from,
                                               const at::Tensor& from_t,
                                               const at::Tensor& to_t,
                                               const at::Tensor& noise) const {
  const at::Tensor alpha = at_times(sqrt_alphas_cumprod, from_t, x_from);
  const at::Tensor sigma = at_times(sqrt_one_minus_alphas_cumprod, from_t, x_from);
  const at::Tensor alpha_to = at_times(sqrt_alphas_cumprod, to_t, x_from);
  const at::Tensor sigma_to = at_times(sqrt_one_minus_alphas_cumprod, to_t, x_from);
  return x_from * (alpha_to / alpha) + noise * (sigma_to * alpha - sigma * alpha_to) / alpha;
}

NoiseScheduleImpl::Posterior NoiseScheduleImpl::q_posterior(const at::Tensor& x_start,
                                                            const at::Tensor& x_t,
                                                            const at::Tensor& t) const {
  return {at_times(posterior_mean_coef1, t, x_t) * x_start +
              at_times(posterior_mean_coef2, t, x_t) * x_t,
          at_times(posterior_log_variance_clipped, t, x_t)};
}

at::Tensor NoiseScheduleImpl::noise_from_x_start(const at::Tensor& x_t,
                                                 const at::Tensor& t,
                                                 const at::Tensor& x_start) const {
  return (x_t - at_times(sqrt_alphas_cumprod, t, x_t) * x_start) /
         at_times(sqrt_one_minus_alphas_cumprod, t, x_t);
}

at::Tensor NoiseScheduleImpl::target(Objective objective,
                                     const at::Tensor& x_start,
                                     const at::Tensor& t,
                                     const at::Tensor& noise) const {
  if (objective == Objective::eps) return noise;
  if (objective == Objective::x_start) return x_start;
  return at_times(sqrt_alphas_cumprod, t, x_start) * noise -
         at_times(sqrt_one_minus_alphas_cumprod, t, x_start) * x_start;
}

at::Tensor NoiseScheduleImpl::x_start_of(Objective objective,
                                         const at::Tensor& x_t,
                                         const at::Tensor& t,
                                         const at::Tensor& prediction) const {
  if (objective == Objective::x_start) return prediction;
  if (objective == Objective::eps) {
    return at_times(sqrt_recip_alphas_cumprod, t, x_t) * x_t -
           at_times(sqrt_recipm1_alphas_cumprod, t, x_t) * prediction;
  }
  return at_times(sqrt_alphas_cumprod, t, x_t) * x_t -
         at_times(sqrt_one_minus_alphas_cumprod, t, x_t) * prediction;
}

}  // namespace dalle2
