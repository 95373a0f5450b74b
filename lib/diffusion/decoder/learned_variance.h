// SPDX-License-Identifier: MIT
// The learned variance and its variational bound (Nichol & Dhariwal 2021).
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// KL divergence in nats between two diagonal Gaussians, per pixel.
at::Tensor normal_kl(const at::Tensor& mean1,
                     const at::Tensor& log_variance1,
                     const at::Tensor& mean2,
                     const at::Tensor& log_variance2);

/// Log-likelihood in nats of pixels in [-1, 1] with 256 levels under a Gaussian, per pixel.
at::Tensor discretized_gaussian_log_likelihood(const at::Tensor& x,
                                               const at::Tensor& means,
                                               const at::Tensor& log_scales);

/// The two halves of the network's output, [B, 2 C, H, W]; the second is undefined without learned variance.
std::pair<at::Tensor, at::Tensor> split_output(const at::Tensor& output, bool learned_variance);

/// Turns the variance half of the network's output into a log variance.
struct LearnedVariance {
  bool constrain_frac = false;  ///< a sigmoid keeps the fraction in [0, 1]

  /// Eq. 15: interpolates log(beta) and the clipped posterior log variance. [B, C, H, W]
  at::Tensor log_variance(const NoiseScheduleImpl& schedule,
                          const at::Tensor& t,
                          const at::Tensor& raw_fraction) const;

  /// Bits per dimension of each sample: KL(q || p), or the decoder's NLL at t = 0. The model mean
  /// is detached, so only the variance learns from it. [B]
  /// @param model_x_start the clean image that the network's prediction implies, not clipped
  at::Tensor bound(const NoiseScheduleImpl& schedule,
                   const at::Tensor& x_start,
                   const at::Tensor& x_t,
                   const at::Tensor& t,
                   const at::Tensor& model_x_start,
                   const at::Tensor& raw_fraction) const;
};

}  // namespace dalle2
