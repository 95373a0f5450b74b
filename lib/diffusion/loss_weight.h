// SPDX-License-Identifier: MIT
// What the loss of a sample weighs, by the noise level of its time.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "config/shared/loss_config.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// acp / (1 - acp) at each time, from the schedule's fp32 acp as in diffusers; infinite where acp
/// is 1. The shape of `t`, fp32.
at::Tensor signal_to_noise(const NoiseScheduleImpl& schedule, const at::Tensor& t);

/// Min-SNR weights (Hang et al. 2023, section 3.3): with w = min(snr, gamma), w / snr for noise
/// prediction, w / (snr + 1) for v, w for the clean image. At snr 0 the first is its limit 1; at an
/// infinite snr the first two are 0. [B] -> [B]
at::Tensor min_snr_weights(const at::Tensor& snr, double gamma, Objective objective);

/// sigma = b / (a + b) with a = sqrt(acp), b = sqrt(1 - acp): the share of the noise in the sum
/// that makes x_t, from 0 to 1. The sigma of a rectified flow of the same signal-to-noise ratio.
/// [B]
at::Tensor noise_share(const NoiseScheduleImpl& schedule, const at::Tensor& t);

/// Weights by sigma (Esser et al. 2024, section 3.1): sigma^-2 for sigma_sqrt, 2 / (pi (1 - 2 sigma
/// + 2 sigma^2)) for cosmap, else 1. [B] -> [B] fp32
at::Tensor sigma_weights(LossWeighting weighting, const at::Tensor& sigmas);

/// Weighs the losses of samples by their time.
class LossWeight {
 public:
  virtual ~LossWeight() = default;
  /// @param losses [B]; @param t [B] int64; @return [B]
  virtual at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const = 0;
};

/// p2 weighting (Choi et al. 2022, eq. 8) by the schedule's p2_loss_weight if `gamma` is above 0,
/// else every sample weighs the same.
std::unique_ptr<LossWeight> make_p2_loss_weight(double gamma, const NoiseSchedule& schedule);

/// The product of what is asked for: p2 or min-SNR, and the weighting by sigma.
/// @throws ConfigError for p2 and min-SNR together
std::unique_ptr<LossWeight> make_loss_weight(const LossPlan& plan,
                                             double p2_gamma,
                                             Objective objective,
                                             const NoiseSchedule& schedule);

}  // namespace dalle2
