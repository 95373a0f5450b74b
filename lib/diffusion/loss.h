// SPDX-License-Identifier: MIT
// What /train says of the loss of a step (LossPlan): how its times are drawn, what is added to the noise,
// how far a prediction is from its target, what that weighs by the noise level, and DREAM.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "config/shared/loss_config.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// u = sigmoid(mean + std * normal). Any shape.
at::Tensor logit_normal_density(const at::Tensor& normals, double mean, double std);

/// u = 1 - v - scale * (cos^2(pi v / 2) - 1 + v): v = 0 gives 1, v = 1 gives 0. Any shape.
at::Tensor mode_density(const at::Tensor& uniforms, double scale);

/// Time T - 1 - floor(u T) of u in [0, 1], kept in [0, T): u near 0 is the noisiest. int64
at::Tensor times_of(const at::Tensor& u, int64_t timesteps);

/// How the times of a training step are drawn (Esser et al. 2024, section 3.1), by the scheme that the config
/// names.
class TimestepDensity {
 public:
  /// @throws ConfigError if a parameter of the scheme is null
  explicit TimestepDensity(const TimestepSamplingConfig& config);
  /// Times in [0, timesteps). @return [batch] int64 on the generator's device
  at::Tensor draw(int64_t batch, int64_t timesteps, at::Generator generator) const;

 private:
  TimestepScheme scheme_;
  double mean_ = 0, std_ = 0, mode_scale_ = 0;
};

/// Standard normal numbers; undefined where an option is off.
struct NoiseAugmentationDraws {
  at::Tensor offset;        ///< [B, C, 1, 1]
  at::Tensor perturbation;  ///< [B, C, H, W]
};

/// Noise offset and input perturbation: what is added to the white noise of a training step.
struct NoiseAugmentation {
  double offset = 0.0;
  double perturbation = 0.0;

  /// @param sizes of the noise, [B, C, H, W] @return tensors on the generator's device
  NoiseAugmentationDraws draw(at::IntArrayRef sizes, at::Generator generator) const;

  /// The noise that the target holds: a share of it is the same in a whole plane, because white
  /// noise never teaches the network to change an image's mean. [B, C, H, W]
  at::Tensor target_noise(const at::Tensor& noise, const NoiseAugmentationDraws& draws) const;

  /// The noise that the network sees: `target_noise` plus some that the target does not hold, like
  /// the sampler's own errors later (Ning et al. 2023). [B, C, H, W]
  at::Tensor input_noise(const at::Tensor& target_noise, const NoiseAugmentationDraws& draws) const;
};

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

/// What a training step shows the network, and what it should answer.
struct TrainingPair {
  at::Tensor x_t;     ///< [B, C, H, W]
  at::Tensor target;  ///< [B, C, H, W]
};

/// The network's prediction at x_t, without the half of a learned variance. [B, C, H, W] -> [B, C,
/// H, W]
using Predictor = std::function<at::Tensor(const at::Tensor& x_t)>;

/// DREAM: Diffusion Rectification and Estimation-Adaptive Models (Zhou et al. 2024, algorithm 1).
class Dream {
 public:
  /// @throws ConfigError if it is enabled for an objective other than noise prediction
  Dream(const DreamConfig& config, Objective objective);
  /// The pair with the network's own error in both: with lambda = sqrt(1 - acp)^p and d = lambda *
  /// (noise - prediction), x_t + sqrt(1 - acp) d and target + d. `predict` is called once, without
  /// gradients; with DREAM switched off it is not called, and the pair stays as it is.
  /// @param noise [B, C, H, W] that the target holds; @param t [B] int64
  TrainingPair rectify(const NoiseScheduleImpl& schedule,
                       const TrainingPair& pair,
                       const at::Tensor& t,
                       const at::Tensor& noise,
                       const Predictor& predict) const;

 private:
  DreamConfig config_;
};

}  // namespace dalle2
