// SPDX-License-Identifier: MIT
// Noise schedules, the closed forms of the diffusion process, and what a network predicts of it.
// Legend: T training steps, t [B] int64 in [0, T), acp = cumulative product of the alphas.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "config/reading/reflect.h"

namespace dalle2 {

/// Shifts and scales sqrt(acp) so that the last step keeps nothing of the image and the first is
/// unchanged (Lin et al. 2023, algorithm 1). [T] -> [T], the last beta is 1.
at::Tensor rescale_zero_terminal_snr(const at::Tensor& betas);

struct NoiseScheduleOptions {
  BetaSchedule kind = BetaSchedule::cosine;
  int64_t timesteps = 1000;
  double p2_loss_weight_gamma = 0.0;
  double p2_loss_weight_k = 1.0;
  bool zero_terminal_snr = false;
};

/// The thirteen buffers of a schedule, in the reference's names and order, and what they compute.
class NoiseScheduleImpl : public torch::nn::Module {
 public:
  /// The options must be ones that plan_decoder accepts: no beta above 1.
  explicit NoiseScheduleImpl(const NoiseScheduleOptions& options);

  int64_t timesteps() const { return timesteps_; }
  /// True if the last step keeps nothing of the image (acp = 0).
  bool has_zero_terminal_snr() const { return zero_terminal_snr_; }

  /// x_t of q(x_t | x_0). [B, C, H, W]
  at::Tensor q_sample(const at::Tensor& x_start,
                      const at::Tensor& t,
                      const at::Tensor& noise) const;

  /// Takes a less noisy x_from at `from_t` to the noisier `to_t` (RePaint's step back).
  at::Tensor q_sample_from_to(const at::Tensor& x_from,
                              const at::Tensor& from_t,
                              const at::Tensor& to_t,
                              const at::Tensor& noise) const;

  struct Posterior {
    at::Tensor mean;          ///< [B, C, H, W]
    at::Tensor log_variance;  ///< [B, 1, 1, 1], clipped at log(1e-20)
  };
  /// q(x_{t-1} | x_t, x_0).
  Posterior q_posterior(const at::Tensor& x_start,
                        const at::Tensor& x_t,
                        const at::Tensor& t) const;

  /// What a network of this objective should have said: the noise, x_0, or v = sqrt(acp) noise -
  /// sqrt(1 - acp) x_0 (Salimans & Ho 2022). [B, C, H, W]
  at::Tensor target(Objective objective,
                    const at::Tensor& x_start,
                    const at::Tensor& t,
                    const at::Tensor& noise) const;
  /// The clean image that its `prediction` at x_t implies, not clipped. [B, C, H, W]
  at::Tensor x_start_of(Objective objective,
                        const at::Tensor& x_t,
                        const at::Tensor& t,
                        const at::Tensor& prediction) const;
  /// Finite at acp = 0 too, unlike the reference's form (it divides infinities there).
  at::Tensor noise_from_x_start(const at::Tensor& x_t,
                                const at::Tensor& t,
                                const at::Tensor& x_start) const;

  // [T] fp32 each; read-only for others.
  at::Tensor betas, alphas_cumprod, alphas_cumprod_prev, sqrt_alphas_cumprod,
      sqrt_one_minus_alphas_cumprod, log_one_minus_alphas_cumprod, sqrt_recip_alphas_cumprod,
      sqrt_recipm1_alphas_cumprod, posterior_variance, posterior_log_variance_clipped,
      posterior_mean_coef1, posterior_mean_coef2, p2_loss_weight;

 private:
  void register_buffers(const at::Tensor& betas_fp64, const NoiseScheduleOptions& options);

  int64_t timesteps_;
  bool zero_terminal_snr_;
};
TORCH_MODULE(NoiseSchedule);

/// A buffer's entry at each sample's time, ready to multiply `like`.
/// @param buffer [T]; t [B] int64; like [B, ...] @return [B, 1, ...], as many dimensions as `like`
inline at::Tensor at_times(const at::Tensor& buffer, const at::Tensor& t, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[0] = t.size(0);
  return buffer.gather(0, t).view(shape);
}

}  // namespace dalle2
