// SPDX-License-Identifier: MIT
// What /train says of the loss of a step (LossPlan): how its times are drawn, what is added to the noise,
// how far a prediction is from its target, what that weighs by the noise level, and DREAM. The learned variance and
// its variational bound (Nichol & Dhariwal 2021).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "config/shared/train_options.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// u = sigmoid(mean + std * normal). Any shape.
at::Tensor logit_normal_density(const at::Tensor& normals, double mean, double std);

/// u = 1 - v - scale * (cos^2(pi v / 2) - 1 + v): v = 0 gives 1, v = 1 gives 0. Any shape.
at::Tensor mode_density(const at::Tensor& uniforms, double scale);

/// Time T - 1 - floor(u T) of u in [0, 1], kept in [0, T): u near 0 is the noisiest. int64
at::Tensor times_of(const at::Tensor& u, int64_t timesteps);

/// Times of a training step (Esser et al. 2024, section 3.1), by the scheme that the config names.
/// @return [batch] int64 in [0, timesteps), on the generator's device
at::Tensor draw_times(const TimestepSamplingConfig& config,
                      int64_t batch,
                      int64_t timesteps,
                      at::Generator generator);

/// Standard normal numbers; undefined where an option is off.
struct NoiseAugmentationDraws {
  at::Tensor offset;        ///< [B, C, 1, 1]
  at::Tensor perturbation;  ///< [B, C, H, W]
};

/// @param sizes of the noise, [B, C, H, W] @return tensors on `device`
NoiseAugmentationDraws draw_augmentation(const LossPlan& plan,
                                         at::IntArrayRef sizes,
                                         const at::Generator& generator,
                                         const at::Device& device);

/// White noise with noise offset and input perturbation. [B, C, H, W]
struct AugmentedNoise {
  /// What the target holds: a share of it is the same in a whole plane, because white noise never
  /// teaches the network to change an image's mean.
  at::Tensor target;
  /// What the network sees: some more that the target does not hold, like the sampler's own errors
  /// later (Ning et al. 2023).
  at::Tensor input;
};
AugmentedNoise augmented_noise(const LossPlan& plan,
                               const at::Tensor& noise,
                               const NoiseAugmentationDraws& draws);

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

/// Losses times what is asked for: p2 (Choi et al. 2022, eq. 8) by the schedule's p2_loss_weight or
/// min-SNR, and the weighting by sigma. With none of them every sample weighs the same.
/// @param p2_gamma 0: no p2; @param losses [B]; @param t [B] int64; @return [B]
at::Tensor weighed(const LossPlan& plan,
                   double p2_gamma,
                   Objective objective,
                   const NoiseScheduleImpl& schedule,
                   const at::Tensor& losses,
                   const at::Tensor& t);

/// What a training step shows the network, and what it should answer.
struct TrainingPair {
  at::Tensor x_t;     ///< [B, C, H, W]
  at::Tensor target;  ///< [B, C, H, W]
};

/// The network's prediction at x_t, without the half of a learned variance. [B, C, H, W] -> [B, C,
/// H, W]
using Predictor = std::function<at::Tensor(const at::Tensor& x_t)>;

/// DREAM: Diffusion Rectification and Estimation-Adaptive Models (Zhou et al. 2024, algorithm 1), for
/// networks that predict the noise. The pair with the network's own error in both: with lambda =
/// sqrt(1 - acp)^p and d = lambda * (noise - prediction), x_t + sqrt(1 - acp) d and target + d. `predict`
/// is called once, without gradients; with DREAM switched off it is not called, and the pair stays as it
/// is. @param noise [B, C, H, W] that the target holds; @param t [B] int64
TrainingPair dreamed(const DreamConfig& config,
                     const NoiseScheduleImpl& schedule,
                     const TrainingPair& pair,
                     const at::Tensor& t,
                     const at::Tensor& noise,
                     const Predictor& predict);

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
