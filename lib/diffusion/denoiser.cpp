// SPDX-License-Identifier: MIT
#include "diffusion/denoiser.h"

#include <torch/torch.h>

namespace dalle2 {

at::Tensor rescale_guidance(const at::Tensor& guided, const at::Tensor& conditional, double share) {
  const auto spread = [](const at::Tensor& x) { return x.std({1, 2, 3}, true, /*keepdim=*/true); };
  const at::Tensor rescaled = guided * (spread(conditional) / spread(guided));
  return share * rescaled + (1 - share) * guided;
}

Denoiser::Denoiser(std::shared_ptr<UnetImpl> unet,
                   NoiseSchedule schedule,
                   PredictionTarget target,
                   UnetConditions conditions,
                   DenoiserOptions options)
    : unet_(std::move(unet)),
      schedule_(std::move(schedule)),
      target_(target),
      conditions_(std::move(conditions)),
      options_(std::move(options)) {}

Denoised Denoiser::operator()(const at::Tensor& x,
                              const at::Tensor& times,
                              const at::Tensor& self_cond) {
  UnetConditions conditions = conditions_;
  conditions.self_cond = self_cond;
  const auto [prediction, raw_fraction] = split_output(
      guided_output(x, times, conditions).to(x.scalar_type()), options_.learned_variance);
  const at::Tensor x_start = target_.x_start(*schedule_, x, times, prediction);
  return {options_.threshold ? options_.threshold(x_start) : x_start,
          raw_fraction,
          ddim_noise(options_.ddim, *schedule_, target_.objective, x, times, prediction, x_start)};
}

at::Tensor Denoiser::guided_output(const at::Tensor& x,
                                   const at::Tensor& times,
                                   const UnetConditions& conditions) {
  if (options_.cfg_rescale == 0 || options_.cond_scale == 1) {
    return unet_->forward_with_cond_scale(x, times, conditions, options_.cond_scale);
  }
  const auto [conditional, unconditional] = unet_->forward_with_and_without(x, times, conditions);
  const at::Tensor guided = unconditional + (conditional - unconditional) * options_.cond_scale;
  const int64_t channels = x.size(1);
  at::Tensor rescaled = rescale_guidance(
      guided.narrow(1, 0, channels), conditional.narrow(1, 0, channels), options_.cfg_rescale);
  if (!options_.learned_variance) return rescaled;
  return at::cat({rescaled, guided.narrow(1, channels, channels)}, 1);  // the variance as it is
}

}  // namespace dalle2
