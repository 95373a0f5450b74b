// SPDX-License-Identifier: MIT
// `train` of a prior config (config.md, section 9): what one training step needs.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/ema_config.h"
#include "config/lora_config.h"
#include "config/loss_config.h"
#include "config/reflect.h"
#include "config/types.h"

namespace dalle2 {

struct PriorTrainConfig {
  static constexpr const char* kDoc = "The optimisation.";

  double lr = 1.1e-4;
  double wd = 6.02e-2;
  double eps = 1e-6;
  std::vector<double> betas = {0.9, 0.99};
  bool group_wd_params = true;
  std::optional<double> max_grad_norm = 0.5;
  std::optional<int64_t> warmup_steps;
  std::optional<int64_t> cosine_decay_max_steps;
  bool use_ema = true;
  double ema_beta = 0.9999;
  int64_t ema_update_after_step = 100;
  int64_t ema_update_every = 10;
  double ema_inv_gamma = 1.0;
  double ema_power = 2.0 / 3.0;
  double ema_min_value = 0.0;
  std::optional<int64_t> update_model_with_ema_every;
  EmaConfig ema;
  std::optional<int64_t>
      max_batch_size;  ///< chunk of a batch that goes through the network at once
  bool amp = false;
  std::optional<MixedPrecision> mixed_precision;
  // The training utilities of diffusers. A noise offset has no meaning for a vector.
  std::optional<double> min_snr_gamma;
  LossWeighting loss_weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double input_perturbation = 0.0;
  LoraConfig lora;
  FrozenDtype frozen_dtype = FrozenDtype::fp32;
  TrainableDtype trainable_dtype = TrainableDtype::fp32;

  /// What plan_prior() puts into the prior.
  LossPlan loss_plan() const {
    LossPlan plan;
    plan.min_snr_gamma = min_snr_gamma;
    plan.weighting = loss_weighting;
    plan.timestep_sampling = timestep_sampling;
    plan.dream = dream;
    plan.input_perturbation = input_perturbation;
    return plan;
  }

  void fields(auto& f) {
    D2_FIELD(lr, "Peak learning rate.", above(0));
    D2_FIELD(wd, "Weight decay; 0 trains with Adam, else with AdamW.", at_least(0));
    D2_FIELD(eps, "Adam's epsilon.", above(0));
    D2_FIELD(betas, "Adam's two decay rates.", at_least(0).below(1).entries(2));
    D2_FIELD(group_wd_params, "Decay only weights of two or more dimensions, no biases and gains.");
    D2_FIELD(max_grad_norm, "Gradients are scaled down to this norm; null for never.", above(0));
    D2_FIELD(warmup_steps,
             "Steps in which the learning rate rises to its peak; null for none.",
             at_least(1));
    D2_FIELD(cosine_decay_max_steps,
             "Steps after which the learning rate has fallen to zero along a cosine; null for "
             "none.",
             at_least(1));
    D2_FIELD(use_ema, "Keep an exponential average of the weights; samples are drawn with it.");
    D2_FIELD(ema_beta,
             "Decay of the averaged weights, per update. (The reference's config says 0.99 and its "
             "runs have 0.9999: it never hands the value on.)",
             within(0, 1));
    D2_FIELD(ema_update_after_step,
             "Steps before averaging begins; until then the average is a copy.",
             at_least(0));
    D2_FIELD(ema_update_every, "Steps between two updates of the average.", at_least(1));
    D2_FIELD(ema_inv_gamma, "Warm-up of the decay: 1 - (1 + step / inv_gamma) ^ -power.", above(0));
    D2_FIELD(ema_power, "Exponent of that warm-up.", above(0));
    D2_FIELD(ema_min_value, "Least decay.", within(0, 1));
    D2_FIELD(update_model_with_ema_every,
             "Steps after which the weights become their average (arXiv 2406.02596); null for "
             "never. Only with ema.kind `ema_pytorch`.",
             at_least(1));
    D2_FIELD(ema, "Kind of the averaged weights.");
    D2_FIELD(max_batch_size,
             "Samples that go through the network at once; larger batches are split and their "
             "gradients added. Null for the whole batch.",
             at_least(1));
    D2_FIELD(amp,
             "Mixed precision of the kind that the device does well, where `mixed_precision` is "
             "null.");
    D2_FIELD(mixed_precision,
             "Arithmetic of matrix products in training and validation: `no` (float32), `bf16`, or "
             "`fp16` with a loss scale. Null is `no`, or what `amp` chooses.");
    D2_FIELD(min_snr_gamma,
             "Min-SNR weighting of the loss (Hang et al. 2023): min(snr, gamma) over snr for a "
             "prior that predicts the noise, over snr + 1 for v, over 1 for the clean embedding. "
             "Null is off.",
             above(0));
    D2_FIELD(loss_weighting,
             "Weight of the loss by the noise level sigma = b / (a + b), a and b the shares of "
             "embedding and noise: `sigma_sqrt` is sigma^-2, sigma at least 0.001; `cosmap` is 2 / "
             "(pi (1 - 2 sigma + 2 sigma^2)).");
    D2_FIELD(timestep_sampling, "Which times the steps are trained on.");
    D2_FIELD(dream, "Training on the network's own errors.");
    D2_FIELD(input_perturbation,
             "Adds noise of this strength to the noised embedding that the target does not contain "
             "(Ning et al. 2023); 0.1 is recommended.",
             at_least(0));
    D2_FIELD(lora, "Low-rank adapters.");
    D2_FIELD(frozen_dtype, "With `lora`: type in which the weights of the frozen layers are held.");
    D2_FIELD(trainable_dtype, "Type of the parameters that are trained.");
  }
};

}  // namespace dalle2
