// SPDX-License-Identifier: MIT
// `train` of a decoder config (config.md, section 5).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/ema_config.h"
#include "config/lora_config.h"
#include "config/loss_config.h"
#include "config/non_finite_config.h"
#include "config/post_hoc_ema_config.h"
#include "config/reflect.h"
#include "config/types.h"

namespace dalle2 {

struct DecoderTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. Values that may be arrays have one entry for each unet.";

  int64_t epochs = 20;
  OneOrMany<double> lr = 1e-4;
  OneOrMany<double> wd = 0.01;
  std::optional<OneOrMany<std::optional<int64_t>>> warmup_steps;
  bool find_unused_parameters = true;
  bool static_graph = true;
  OneOrMany<double> max_grad_norm = 0.5;
  int64_t save_every_n_samples = 100000;
  int64_t n_sample_images = 6;
  OneOrMany<double> cond_scale = 1.0;
  std::string device = "cuda:0";
  std::optional<int64_t> epoch_samples;
  std::optional<int64_t> validation_samples;
  bool save_immediately = false;
  bool use_ema = true;
  double ema_beta = 0.999;
  bool amp = false;
  std::optional<std::vector<bool>> unet_training_mask;
  // Keys that the reference's trainer class has and its config drops.
  OneOrMany<double> eps = 1e-8;
  std::vector<double> betas = {0.9, 0.99};
  bool group_wd_params = true;
  std::optional<OneOrMany<std::optional<int64_t>>> cosine_decay_max_steps;
  int64_t ema_update_after_step = 100;
  int64_t ema_update_every = 10;
  double ema_inv_gamma = 1.0;
  double ema_power = 2.0 / 3.0;
  double ema_min_value = 0.0;
  std::optional<int64_t> update_model_with_ema_every;
  EmaConfig ema;
  PostHocEmaConfig post_hoc_ema;
  int64_t grad_accum_every = 1;           ///< batches of one update
  std::optional<int64_t> max_batch_size;  ///< chunk of a batch that goes through the unet at once
  // The training utilities of diffusers.
  std::optional<OneOrMany<std::optional<double>>> min_snr_gamma;
  LossWeighting loss_weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double noise_offset = 0.0;
  double input_perturbation = 0.0;
  bool deterministic = false;
  bool async_save = true;
  LoraConfig lora;
  FrozenDtype frozen_dtype = FrozenDtype::fp32;
  TrainableDtype trainable_dtype = TrainableDtype::fp32;
  std::optional<MixedPrecision> mixed_precision;
  NonFiniteConfig non_finite;

  void fields(auto& f) {
    D2_FIELD(epochs, "Passes over the training shards.", at_least(1));
    D2_FIELD(lr, "Peak learning rate, for all unets or for each.", above(0).up_to(1e-2));
    D2_FIELD(wd,
             "Weight decay, for all unets or for each; 0 trains with Adam, else with AdamW.",
             at_least(0));
    D2_FIELD(warmup_steps,
             "Steps in which the learning rate rises to its peak; null for none.",
             at_least(1));
    D2_FIELD(find_unused_parameters, "Several processes: look for parameters without a gradient.");
    D2_FIELD(static_graph, "Several processes: the network's graph never changes.");
    D2_FIELD(max_grad_norm,
             "Gradients are scaled down to this norm, for all unets or for each.",
             above(0));
    D2_FIELD(save_every_n_samples, "Samples between two snapshots.", at_least(0));
    D2_FIELD(n_sample_images,
             "Images drawn for the logs, of the training and of the test shards; 0 for none.",
             at_least(0));
    D2_FIELD(cond_scale,
             "Strength of classifier-free guidance when sampling, for all unets or for each; 1 is "
             "none.");
    D2_FIELD(device, "Device to train on, e.g. `cpu` or `cuda:0`.", not_empty());
    D2_FIELD(epoch_samples, "Samples after which an epoch ends early; null for none.", at_least(1));
    D2_FIELD(validation_samples,
             "Samples after which a validation ends early; null for none.",
             at_least(1));
    D2_FIELD(save_immediately,
             "Save after the first step of each epoch too (to see that saving works).");
    D2_FIELD(use_ema, "Keep an exponential average of the weights; samples are drawn with it.");
    D2_FIELD(ema_beta, "Decay of the averaged weights, per update.", within(0, 1));
    D2_FIELD(amp,
             "Mixed precision of the kind that the device does well, where `mixed_precision` is "
             "null: `bf16` on GPUs since Ampere and CPUs with bfloat16 instructions, `fp16` on "
             "older GPUs, else none. A line in the log tells what was taken.");
    D2_FIELD(unet_training_mask,
             "Which unets are trained; null for all. Untrained ones take no memory, and real "
             "images stand in for their output.",
             not_empty());
    D2_FIELD(eps, "Adam's epsilon, for all unets or for each.", above(0));
    D2_FIELD(betas, "Adam's two decay rates.", at_least(0).below(1).entries(2));
    D2_FIELD(group_wd_params, "Decay only weights of two or more dimensions, no biases and gains.");
    D2_FIELD(cosine_decay_max_steps,
             "Steps after which the learning rate has fallen to zero along a cosine; null for "
             "none.",
             at_least(1));
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
    D2_FIELD(post_hoc_ema, "Averages for a choice after training.");
    D2_FIELD(grad_accum_every,
             "Batches whose gradients make one update, weighted by their samples.",
             at_least(1));
    D2_FIELD(max_batch_size,
             "Samples that go through the network at once; larger batches are split and their "
             "gradients added. Null for the whole batch.",
             at_least(1));
    D2_FIELD(min_snr_gamma,
             "Min-SNR weighting of the loss (Hang et al. 2023): min(snr, gamma) over snr for unets "
             "that predict the noise, over snr + 1 for v, over 1 for the clean image. 5 is "
             "recommended; null is off, for all unets or for each. Not together with "
             "`decoder.p2_loss_weight_gamma`.",
             above(0));
    D2_FIELD(loss_weighting,
             "Weight of the loss by the noise level sigma = b / (a + b), a and b the shares of "
             "image and noise: `sigma_sqrt` is sigma^-2, sigma at least 0.001; `cosmap` is 2 / (pi "
             "(1 - 2 sigma + 2 sigma^2)).");
    D2_FIELD(timestep_sampling, "Which times the steps are trained on.");
    D2_FIELD(dream, "Training on the network's own errors.");
    D2_FIELD(noise_offset,
             "Adds noise of this strength that is the same in all pixels of a channel, so that "
             "drawings may be brighter or darker as a whole; 0.05 to 0.1 is usual.",
             at_least(0));
    D2_FIELD(input_perturbation,
             "Adds noise of this strength to the noised image that the target does not contain "
             "(Ning et al. 2023); 0.1 is recommended.",
             at_least(0));
    D2_FIELD(deterministic,
             "Only algorithms that give the same bits each time, and an error where there is none. "
             "On the CPU that is so without it; on a GPU it costs speed.");
    D2_FIELD(async_save,
             "Write checkpoints while training goes on: a save holds the steps up only for a copy "
             "of the state in host memory, which it takes once. A save waits for the one before.");
    D2_FIELD(lora, "Low-rank adapters.");
    D2_FIELD(frozen_dtype,
             "With `lora`: type in which the weights of the frozen layers are held. `bf16` and "
             "`fp16` take half the memory; they are cast for each product, which costs time.");
    D2_FIELD(trainable_dtype, "Type of the parameters that are trained.");
    D2_FIELD(mixed_precision,
             "Arithmetic of matrix products and convolutions in training and validation: `no` "
             "(float32), `bf16`, or `fp16` with a loss scale for each unet. Weights, gradients, "
             "moments, averages and losses are float32 in any case. Null is `no`, or what `amp` "
             "chooses.");
    D2_FIELD(non_finite, "What becomes of losses and gradients that are no numbers.");
  }
};

}  // namespace dalle2
