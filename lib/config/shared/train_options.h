// SPDX-License-Identifier: MIT
// Options of `train` that several kinds of run share, declared once. A kind derives its own `train`
// from those it has, and its `fields` calls theirs. `Per` says how many values a run has of what
// may differ between its networks: Single one, OneOrMany one or one for each.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/reflect.h"
#include "config/shared/text_rules.h"

namespace dalle2 {

/// Adam, its learning rate, and the clipping of its gradients.
template <template <class> class Per>
struct OptimizerConfig {
  Per<double> lr = 1e-4;
  Per<double> wd = 0.01;
  Per<double> eps = 1e-8;
  std::vector<double> betas = {0.9, 0.99};
  bool group_wd_params = true;
  Per<std::optional<double>> max_grad_norm = 0.5;
  Per<std::optional<int64_t>> warmup_steps = std::nullopt;
  Per<std::optional<int64_t>> cosine_decay_max_steps = std::nullopt;

  void fields(auto& f, const Limits& lr_limits = above(0)) {
    D2_FIELD(lr, "Peak learning rate.", lr_limits);
    D2_FIELD(wd, "Weight decay; 0 trains with Adam, else with AdamW.", at_least(0));
    D2_FIELD(eps, "Adam's epsilon.", above(0));
    D2_FIELD(betas, "Adam's two decay rates.", at_least(0).below(1).entries(2));
    D2_FIELD(group_wd_params, "No weight decay for biases and gains: weights of one dimension.");
    D2_FIELD(max_grad_norm,
             "Largest norm of the gradients, which are scaled down to it; null for no limit.",
             above(0));
    D2_FIELD(warmup_steps,
             "Updates in which the learning rate rises to its peak; null for no warm-up.",
             within(1, most::kSteps));
    D2_FIELD(
        cosine_decay_max_steps,
        "Updates until the learning rate has fallen to zero along a cosine; null for no decay.",
        within(1, most::kSteps));
  }
};

struct DreamConfig {
  static constexpr const char* kDoc =
      "DREAM (Zhou et al. 2024): the network first runs without gradients, and then trains on "
      "samples that contain its own error, as it meets them when sampling. Only for networks that "
      "predict the noise. A step takes about a third longer.";

  bool enabled = false;
  double detail_preservation = 1.0;

  void fields(auto& f) {
    D2_FIELD(enabled, "Turn DREAM on.");
    D2_FIELD(detail_preservation,
             "Exponent p of the weight sqrt(1 - alphas_cumprod)^p of the error: 0 takes the whole "
             "error; larger values take less where the sample is nearly clean.",
             at_least(0));
  }
};

struct TimestepSamplingConfig {
  static constexpr const char* kDoc =
      "Distribution of the timesteps in training (Esser et al. 2024, section 3.1). A number u in "
      "[0, 1] is drawn and becomes the timestep T - 1 - floor(u T), where T is `timesteps`: u near "
      "0 gives the noisiest ones, as in diffusers.";

  TimestepScheme scheme = TimestepScheme::uniform;
  double logit_mean = 0.0;
  double logit_std = 1.0;
  double mode_scale = 1.29;

  void fields(auto& f) {
    D2_FIELD(scheme,
             "`uniform`: u is uniform. `logit_normal`: u = sigmoid(z) with a normal z. `mode`: "
             "u = 1 - v - mode_scale * (cos^2(pi v / 2) - 1 + v), where v is uniform in [0, 1].");
    D2_FIELD(logit_mean,
             "Mean of z in `logit_normal`. Below 0 prefers noisy timesteps, above 0 clean ones.");
    D2_FIELD(logit_std, "Standard deviation of z in `logit_normal`.", at_least(0));
    D2_FIELD(
        mode_scale,
        "Strength of `mode`: above 0 prefers the middle timesteps, below 0 the ends; from -1 to "
        "1.75 the map from v to u is monotonic.");
  }
};

/// What `train` asks of the loss of one model.
struct LossPlan {
  std::optional<double> min_snr_gamma;
  LossWeighting weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double noise_offset = 0.0;        ///< standard deviation of the noise that a whole plane shares
  double input_perturbation = 0.0;  ///< standard deviation of the noise the target does not know
};

/// The options of a diffusion model's loss.
template <template <class> class Per>
struct LossConfig {
  Per<std::optional<double>> min_snr_gamma = std::nullopt;
  LossWeighting loss_weighting = LossWeighting::none;
  TimestepSamplingConfig timestep_sampling;
  DreamConfig dream;
  double input_perturbation = 0.0;

  /// What they ask of network `index` of the run.
  LossPlan loss_plan(size_t index = 0) const {
    LossPlan plan;
    plan.min_snr_gamma = value_for(min_snr_gamma, index);
    plan.weighting = loss_weighting;
    plan.timestep_sampling = timestep_sampling;
    plan.dream = dream;
    plan.input_perturbation = input_perturbation;
    return plan;
  }

  void fields(auto& f) {
    D2_FIELD(
        min_snr_gamma,
        "Min-SNR weighting of the loss (Hang et al. 2023): min(snr, gamma), divided by snr if the "
        "network predicts the noise, by snr + 1 for v, by 1 for the clean sample. 5 is "
        "recommended; null is off.",
        above(0));
    D2_FIELD(
        loss_weighting,
        "Weight of the loss by the noise level sigma = b / (a + b), where a and b are the factors "
        "of the clean sample and of the noise. `sigma_sqrt` is sigma^-2, with sigma at least "
        "0.001; `cosmap` is 2 / (pi (1 - 2 sigma + 2 sigma^2)).");
    D2_FIELD(timestep_sampling, "Distribution of the timesteps in training.");
    D2_FIELD(dream, "Training on the network's own errors.");
    D2_FIELD(input_perturbation,
             "Strength of extra noise that the target does not contain (Ning et al. 2023); 0.1 is "
             "recommended.",
             at_least(0));
  }
};

struct EmaConfig {
  static constexpr const char* kDoc =
      "Kind of the averaged weights. `ema_pytorch` is the average of the reference, set by the "
      "keys `ema_*` beside this object. `diffusers` is the EMAModel of diffusers, set by the other "
      "keys of this object; it averages at every update and saves `ema_diffusers` instead of "
      "`ema`.";

  EmaKind kind = EmaKind::ema_pytorch;
  double decay = 0.9999;
  double min_decay = 0.0;
  int64_t update_after_step = 0;
  bool use_ema_warmup = false;
  double inv_gamma = 1.0;
  double power = 2.0 / 3.0;
  bool foreach = false;
  bool offload = false;

  void fields(auto& f) {
    D2_FIELD(kind, "The other keys are those of `diffusers`.");
    D2_FIELD(decay, "Largest decay, per update.", within(0, 1));
    D2_FIELD(min_decay, "Lowest decay, once averaging has begun.", within(0, 1));
    D2_FIELD(update_after_step,
             "Updates before averaging begins; up to the next one, the average is a copy of the "
             "weights.",
             within(0, most::kSteps));
    D2_FIELD(
        use_ema_warmup,
        "True: the decay rises as 1 - (1 + n / inv_gamma) ^ -power, where n counts the averaged "
        "updates. False: as (1 + n) / (10 + n).");
    D2_FIELD(inv_gamma, "With `use_ema_warmup`: a larger value slows the rise.", above(0));
    D2_FIELD(
        power,
        "With `use_ema_warmup`: exponent of the rise. 2/3 suits a million updates and more, 3/4 "
        "fewer.",
        above(0));
    D2_FIELD(foreach, "Update all tensors in one call: faster on a GPU, equal up to rounding.");
    D2_FIELD(offload,
             "Keep the average in host memory between updates: less memory on the device, two more "
             "transfers per update.");
    f.check(decay >= min_decay,
            "decay",
            fmt::format("must not be below min_decay ({}), got {}", min_decay, decay));
  }

  bool operator==(const EmaConfig&) const = default;
};

struct PostHocEmaConfig {
  static constexpr const char* kDoc =
      "Two more averages of the weights, saved at intervals. `dalle2-train ema --sigma S` makes an "
      "average of another width from them (Karras et al. 2024, arXiv 2312.02696).";

  std::optional<int64_t> save_every_n_steps;
  std::vector<double> sigmas = {0.05, 0.1};

  void fields(auto& f) {
    D2_FIELD(
        save_every_n_steps,
        "Updates between two saves in `data_path/averages`, each with two copies of the weights; "
        "null is off. The last update is saved too.",
        within(1, most::kSteps));
    D2_FIELD(
        sigmas,
        "Widths of the two averages: standard deviations, as fractions of the run so far. Widths "
        "between and near them can be made.",
        above(0).up_to(0.288).entries(2));
  }

  bool operator==(const PostHocEmaConfig&) const = default;
};

struct AveragesConfig {
  bool use_ema = true;
  double ema_beta = 0.999;
  int64_t ema_update_after_step = 100;
  int64_t ema_update_every = 10;
  double ema_inv_gamma = 1.0;
  double ema_power = 2.0 / 3.0;
  double ema_min_value = 0.0;
  std::optional<int64_t> update_model_with_ema_every;
  EmaConfig ema;
  PostHocEmaConfig post_hoc_ema;

  void fields(auto& f) {
    D2_FIELD(
        use_ema,
        "Keep an exponential moving average of the weights, which `sample` and `evaluate` use.");
    D2_FIELD(ema_beta, "Largest decay, per update of the average.", within(0, 1));
    D2_FIELD(ema_update_after_step,
             "Updates before averaging begins; until then the average is a copy of the weights.",
             within(0, most::kSteps));
    D2_FIELD(ema_update_every,
             "Updates of the weights between two updates of the average.",
             within(1, most::kSteps));
    D2_FIELD(
        ema_inv_gamma,
        "Divisor n0 in the warm-up of the decay, 1 - (1 + n / n0) ^ -`ema_power`, where n counts "
        "the updates since averaging began.",
        above(0));
    D2_FIELD(ema_power, "Exponent in the warm-up of the decay.", above(0));
    D2_FIELD(ema_min_value, "Lowest decay, once averaging has begun.", within(0, 1));
    D2_FIELD(
        update_model_with_ema_every,
        "Updates after which the weights are set to their average, each time (arXiv 2406.02596); "
        "null for never. Only for the kind `ema_pytorch`.",
        within(1, most::kSteps));
    D2_FIELD(ema, "Kind of the averaged weights.");
    D2_FIELD(post_hoc_ema, "Averages whose width is chosen after training.");
  }
};

/// Arithmetic of a step.
struct PrecisionConfig {
  bool amp = false;
  std::optional<MixedPrecision> mixed_precision;
  Tf32 tf32 = Tf32::convolutions;

  void fields(auto& f) {
    D2_FIELD(
        amp,
        "If `mixed_precision` is null, choose the precision by the device: `bf16` on GPUs since "
        "Ampere and CPUs with bfloat16 instructions, `fp16` on older GPUs, otherwise `no`. The log "
        "names it.");
    D2_FIELD(
        mixed_precision,
        "Arithmetic of matrix products and convolutions: `no` (float32), `bf16`, or `fp16` with a "
        "loss scale for each network. Weights, gradients, moments, averages and losses stay "
        "float32. Null is `no`, or what `amp` chooses.");
    D2_FIELD(
        tf32,
        "What NVIDIA GPUs since Ampere compute in TF32, which is faster, with 10 bits of mantissa "
        "instead of 23: nothing, convolutions (as PyTorch does), or matrix products too. Networks "
        "of metrics never use it.");
  }
};

/// Of decoders and priors, whose passes have the same operations each time.
struct PassGraphConfig {
  bool cuda_graph = false;

  void fields(auto& f) {
    D2_FIELD(
        cuda_graph,
        "Replay each pass as a CUDA graph, one for each shape of a batch. Faster if the host "
        "limits the steps (small networks, small batches); takes more GPU memory. Needs a GPU, one "
        "process and a program built with `scripts/build.sh --cuda`. A graph is first checked "
        "against a pass without one; if none can be used, the log says why.");
  }
};

struct LoraConfig {
  static constexpr const char* kDoc =
      "Low-rank adapters (Hu et al. 2021): the network is frozen, and each layer that `targets` "
      "names learns a correction, alpha / rank * up(down(x)), which starts at zero. With "
      "`tracker.load`, the run begins from the weights of a checkpoint without adapters.";

  int64_t rank = 0;
  std::optional<double> alpha;
  std::vector<std::string> targets = {"to_q", "to_kv", "to_out.0"};
  LoraInit init = LoraInit::gaussian;
  double dropout = 0.0;
  bool train_bias = false;

  void fields(auto& f) {
    D2_FIELD(rank, "Width of the adapters; 0 trains the whole network.", within(0, most::kWidth));
    D2_FIELD(alpha,
             "Strength of the adapters, whose correction is multiplied by `alpha` / `rank`. Null: "
             "`rank`.",
             above(0));
    D2_FIELD(
        targets,
        "Linear layers that get an adapter, by their names or the ends of their names after a `.`. "
        "Attention in unets and priors has `to_q`, `to_kv` and `to_out.0`, linear attention "
        "(`sparse_attn`) has `to_qkv`, a block of a CLIP has `out_proj`, `c_fc` and `c_proj`.",
        not_empty());
    D2_FIELD(
        init,
        "Initial `down`: `gaussian` with the standard deviation 1 / rank, or `kaiming` (uniform).");
    D2_FIELD(dropout, "Dropout of the inputs of the adapters.", at_least(0).below(1));
    D2_FIELD(train_bias, "Also train all biases of the network.");
  }

  /// alpha, or its default; the adapters' product is scaled by strength() / rank.
  double strength() const { return alpha.value_or(static_cast<double>(rank)); }
};

/// Low-rank adapters, and the types that frozen and trained weights are held in.
struct AdaptersConfig {
  LoraConfig lora;
  FrozenDtype frozen_dtype = FrozenDtype::fp32;
  TrainableDtype trainable_dtype = TrainableDtype::fp32;

  void fields(auto& f) {
    D2_FIELD(lora, "Low-rank adapters.");
    D2_FIELD(
        frozen_dtype,
        "With `lora`: type of frozen weights. `bf16` and `fp16` take half the memory, but cost "
        "time for casts.");
    D2_FIELD(trainable_dtype, "Type of the parameters that are trained.");
  }
};

/// What the names of checkpoints may hold in a run over shards, with examples.
inline FormatFields shard_placeholders() {
  return {{"epoch", int64_t{0}},
          {"sample", int64_t{0}},
          {"next_task", std::string("train")},
          {"validation_losses", std::vector<double>{0.0}},
          {"samples_seen", int64_t{0}}};
}

struct ShardLoopConfig {
  int64_t save_every_n_samples = 100000;
  std::optional<int64_t> epoch_samples;
  std::optional<int64_t> validation_samples;
  bool save_immediately = false;

  void fields(auto& f) {
    D2_FIELD(save_every_n_samples,
             "Samples between two saves; 0 saves after each update.",
             within(0, most::kSamples));
    D2_FIELD(epoch_samples,
             "Samples after which an epoch ends early; null for no limit.",
             within(1, most::kSamples));
    D2_FIELD(validation_samples,
             "Samples after which a validation ends early; null for no limit.",
             within(1, most::kSamples));
    D2_FIELD(save_immediately,
             "Also save after the first update of each epoch, to see that saving works.");
  }
};

struct NonFiniteConfig {
  static constexpr const char* kDoc =
      "What happens after too many updates with a loss or gradient that is NaN or infinite. Each "
      "such update is skipped and counted: weights, averages, optimizer and schedule stay "
      "unchanged.";

  NonFiniteAction action = NonFiniteAction::stop;
  int64_t after = 20;
  double lr_factor = 0.5;
  int64_t max_roll_backs = 3;

  void fields(auto& f) {
    D2_FIELD(action,
             "`stop` ends the run with exit code 4; `roll_back` returns to the last checkpoint and "
             "continues with a lower learning rate.");
    D2_FIELD(after,
             "Consecutive skipped updates of a network before the action.",
             within(1, most::kEpochs));
    D2_FIELD(
        lr_factor,
        "With `roll_back`: factor for all learning rates at each roll-back; checkpoints keep the "
        "product.",
        above(0).up_to(1));
    D2_FIELD(max_roll_backs,
             "With `roll_back`: roll-backs before the run ends.",
             within(1, most::kEpochs));
  }

  bool operator==(const NonFiniteConfig&) const = default;
};

/// What every training loop asks.
struct LoopConfig {
  int64_t epochs = 1;
  std::string device = "cuda:0";
  bool deterministic = false;
  int64_t grad_accum_every = 1;           ///< batches of one update
  std::optional<int64_t> max_batch_size;  ///< samples that go through the network at once
  int64_t log_every_n_updates = 10;
  bool async_save = true;
  bool allow_changed_config = false;
  NonFiniteConfig non_finite;

  void fields(auto& f) {
    D2_FIELD(epochs, "Passes over the training data.", within(1, most::kEpochs));
    D2_FIELD(device, "`cpu`, `cuda`, or `cuda:N` for GPU number N.", text_without(device_fault));
    D2_FIELD(
        deterministic,
        "Use only algorithms that give the same bits each time; an operation without one ends the "
        "run. Slower on a GPU. A CPU always gives the same bits with the same number of threads "
        "and kind of processor.");
    D2_FIELD(grad_accum_every,
             "Batches for each update, weighted by their numbers of samples.",
             within(1, most::kGroup));
    D2_FIELD(
        max_batch_size,
        "Samples that go through the network at once. Larger batches are split and their gradients "
        "added. Null for whole batches.",
        within(1, most::kBatch));
    D2_FIELD(
        log_every_n_updates,
        "Updates between two records of the log, each with the mean loss. As in the reference, "
        "each epoch counts from its first update, which is recorded.",
        within(1, 10'000));
    D2_FIELD(
        async_save,
        "Write checkpoints while training continues: steps wait only while the state is copied to "
        "host memory, and for the previous save.");
    D2_FIELD(allow_changed_config,
             "Resume even if config changes alter the meaning of the weights or data.");
    D2_FIELD(non_finite, "Handling of non-finite losses and gradients.");
  }
};

/// Several processes that train together.
struct RanksConfig {
  bool find_unused_parameters = true;
  bool static_graph = true;
  ReduceDtype reduce_dtype = ReduceDtype::fp32;
  bool shard_optimizer = false;
  int64_t bucket_mebibytes = 25;
  int64_t hang_timeout_seconds = 60;

  void fields(auto& f) {
    D2_FIELD(
        find_unused_parameters,
        "Several processes: allow parameters that no loss reaches, and name them once; otherwise "
        "they are an error.");
    D2_FIELD(
        static_graph,
        "Several processes: only the first update determines which parameters have gradients.");
    D2_FIELD(
        reduce_dtype,
        "Several processes: type in which gradients are sent and summed. `bf16` halves the bytes "
        "and keeps eight bits of precision.");
    D2_FIELD(
        shard_optimizer,
        "Several processes: each keeps the moments and averages of a part of the weights and "
        "updates that part (ZeRO stage 1), which saves memory. Losses, weights and checkpoints "
        "stay the same; on GPUs, sums may round differently.");
    D2_FIELD(
        bucket_mebibytes,
        "Several processes: size of the buckets, in MiB, in which gradients are sent during the "
        "backward pass.",
        within(1, 4096));
    D2_FIELD(
        hang_timeout_seconds,
        "Several processes: a process for which the others wait this long is stuck; they name it "
        "and end. Saving and waiting for data may take ten times as long.",
        within(2, 86'400));
  }
};

struct SharedTrainConfig : AveragesConfig,
                           PrecisionConfig,
                           AdaptersConfig,
                           LoopConfig,
                           RanksConfig {
  void fields(auto& f) {
    LoopConfig::fields(f);
    RanksConfig::fields(f);
    AveragesConfig::fields(f);
    PrecisionConfig::fields(f);
    AdaptersConfig::fields(f);
  }
};

}  // namespace dalle2
