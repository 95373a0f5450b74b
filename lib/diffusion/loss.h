// SPDX-License-Identifier: MIT
// The loss of a sample: how far a prediction is from its target, and what that weighs by the noise
// level of its time.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/shared/loss_config.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// l1, l2, or huber (smooth l1 with beta 1): the mean over the pixels of each sample.
/// [B, C, H, W] twice -> [B]
at::Tensor pixel_loss(LossType kind, const at::Tensor& prediction, const at::Tensor& target);

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

/// What is asked for, multiplied: p2 (Choi et al. 2022, eq. 8) by the schedule's p2_loss_weight or
/// min-SNR, and the weighting by sigma. With none of them every sample weighs the same.
class LossWeight {
 public:
  /// @param p2_gamma 0: no p2 @throws ConfigError for p2 and min-SNR together
  LossWeight(const LossPlan& plan, double p2_gamma, Objective objective, NoiseSchedule schedule);
  /// @param losses [B]; @param t [B] int64; @return [B]
  at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const;

 private:
  LossPlan plan_;
  bool is_p2_;
  Objective objective_;
  NoiseSchedule schedule_;
};

}  // namespace dalle2
