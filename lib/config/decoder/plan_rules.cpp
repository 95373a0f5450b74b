// SPDX-License-Identifier: MIT
#include "config/decoder/plan_rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace dalle2 {
namespace {

class UnetRules {
 public:
  UnetRules(const UnetConfig& unet, const std::string& pointer, Faults& faults)
      : unet_(unet), pointer_(pointer), faults_(faults) {}

  void check() {
    const size_t before = faults_.errors().size();
    check_sizes();
    check_lengths();
    check_kernels();
    // The rest computes with these figures, so it is asked only when they make sense.
    if (faults_.errors().size() == before) {
      check_widths();
      check_groups();
    }
  }

 private:
  void error(const std::string& key, const std::string& text) {
    faults_.error(pointer_ + "/" + key, text);
  }

  void check_sizes() {
    if (unet_.dim < 4 || unet_.dim % 2 != 0) {
      error("dim",
            fmt::format("must be even and at least 4 (it is the width of the sinusoidal time "
                        "embedding too), got {}",
                        unet_.dim));
    }
  }

  template <class T>
  void check_length(const OneOrMany<T>& value, const char* key) {
    const size_t resolutions = unet_.dim_mults.size();
    if (!value.is_one() && value.size() != resolutions) {
      error(key,
            fmt::format("must be one value or {} (one for each entry of dim_mults), got {}",
                        resolutions,
                        value.size()));
    }
  }

  void check_lengths() {
    check_length(unet_.self_attn, "self_attn");
    check_length(unet_.resnet_groups, "resnet_groups");
    check_length(unet_.num_resnet_blocks, "num_resnet_blocks");
  }

  // Stride 1 keeps the side only with odd kernels, stride 2 halves it only with even ones.
  void check_cross_embed(const std::vector<int64_t>& kernels, const char* key, int64_t parity) {
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (kernels[i] % 2 != parity) {
        error(fmt::format("{}/{}", key, i),
              fmt::format(
                  "must be {} and positive, got {}", parity == 1 ? "odd" : "even", kernels[i]));
      }
    }
  }

  void check_odd(int64_t kernel, const char* key) {
    if (kernel % 2 == 0) {
      error(key,
            fmt::format("must be odd and positive, an even kernel would change the image's size, "
                        "got {}",
                        kernel));
    }
  }

  void check_kernels() {
    if (unet_.init_cross_embed) {
      check_cross_embed(unet_.init_cross_embed_kernel_sizes, "init_cross_embed_kernel_sizes", 1);
    } else {
      check_odd(unet_.init_conv_kernel_size, "init_conv_kernel_size");
    }
    if (unet_.cross_embed_downsample) {
      check_cross_embed(
          unet_.cross_embed_downsample_kernel_sizes, "cross_embed_downsample_kernel_sizes", 0);
    }
    check_odd(unet_.final_conv_kernel_size, "final_conv_kernel_size");
  }

  // The last block takes 2 * dim channels: what comes up the unet, and the first convolution's
  // output. The reference dies of a channel mismatch in its first forward pass otherwise.
  void check_widths() {
    if (unet_.init_dim.value_or(unet_.dim) != unet_.dim) {
      error("init_dim",
            fmt::format("must equal dim ({}) or be null, got {}", unet_.dim, *unet_.init_dim));
    }
    if (unet_.dim_mults[0] != 1 && !unet_.memory_efficient) {
      error("dim_mults/0",
            fmt::format("must be 1 unless memory_efficient is true, got {}", unet_.dim_mults[0]));
    }
    const size_t kernels = unet_.init_cross_embed_kernel_sizes.size();
    if (unet_.init_cross_embed && (kernels > 32 || unet_.dim < int64_t{1} << (kernels - 1))) {
      error("init_cross_embed_kernel_sizes",
            fmt::format("dim {} is too narrow to be shared among {} kernels", unet_.dim, kernels));
    }
    if (unet_.combine_upsample_fmaps && unet_.dim % 8 != 0) {
      error("dim",
            fmt::format("must be divisible by 8 with combine_upsample_fmaps, got {}", unet_.dim));
    }
  }

  void check_groups() {
    for (size_t i = 0; i < unet_.dim_mults.size(); ++i) {
      const int64_t width_in = i == 0 ? unet_.dim : unet_.dim * unet_.dim_mults[i - 1];
      const int64_t width_out = unet_.dim * unet_.dim_mults[i];
      const int64_t groups = unet_.resnet_groups.at(i);
      for (const int64_t width :
           {unet_.memory_efficient && i > 0 ? width_out : width_in, width_out}) {
        if (width % groups == 0) continue;
        const bool one = unet_.resnet_groups.is_one();
        error(one ? "resnet_groups" : fmt::format("resnet_groups/{}", i),
              fmt::format("must divide every width it normalises; {} does not divide {} "
                          "(resolution {})",
                          groups,
                          width,
                          i + 1));
        if (one) return;
        break;
      }
    }
  }

  const UnetConfig& unet_;
  const std::string& pointer_;
  Faults& faults_;
};

}  // namespace

int64_t halvings(const UnetConfig& unet) {
  const auto resolutions = static_cast<int64_t>(unet.dim_mults.size());
  return unet.memory_efficient ? resolutions : resolutions - 1;
}

void check_unet_shape(const UnetConfig& unet, const std::string& pointer, Faults& faults) {
  UnetRules(unet, pointer, faults).check();
}

namespace {

// A chain whose last alphas_cumprod is 0 (jsd, zero terminal SNR) keeps nothing of the image at t =
// T-1. Adding noise and predicting x_start or v are fine there; what divides by it is not. With
// zero_terminal_snr, noise prediction has been refused already.
void check_last_step(const UnetPlan& stage,
                     size_t index,
                     bool zero_terminal_snr,
                     const std::string& pointer,
                     const std::string& what,
                     Faults& faults) {
  const std::string head = fmt::format("{} leaves nothing of the image at the last step", what);
  if (stage.learned_variance) {
    faults.error(pointer,
                 fmt::format("{}, where the loss of a learned variance is NaN: set "
                             "learned_variance to false for unet {}",
                             head,
                             index + 1));
  }
  if (!stage.sample_timesteps && stage.objective == Objective::eps && !zero_terminal_snr) {
    faults.error(pointer,
                 fmt::format("{}, so noise prediction cannot be undone there: set predict_v or "
                             "predict_x_start to true for unet {}, or its sample_timesteps below "
                             "{}",
                             head,
                             index + 1,
                             stage.timesteps - 1));
  }
  if (stage.sample_timesteps == stage.timesteps - 1) {
    faults.error(pointer,
                 fmt::format("{}, where {} DDIM steps would start: use {} steps (DDPM) or fewer "
                             "than {} for unet {}",
                             head,
                             *stage.sample_timesteps,
                             stage.timesteps,
                             stage.timesteps - 1,
                             index + 1));
  }
}

}  // namespace

void check_noise_schedule(const UnetPlan& stage,
                          size_t index,
                          bool zero_terminal_snr,
                          Faults& faults) {
  if (zero_terminal_snr && stage.objective == Objective::eps) {
    faults.error(
        "/decoder/zero_terminal_snr",
        fmt::format("needs predict_v or predict_x_start: at the last step the input is nothing but "
                    "noise, so predicting the noise teaches unet {} nothing about images; "
                    "set one of them to true for it, or zero_terminal_snr to false",
                    index + 1));
  }
  if (stage.beta_schedule == BetaSchedule::jsd) {
    return check_last_step(
        stage, index, zero_terminal_snr, "/decoder/beta_schedule", "the jsd schedule", faults);
  }
  if (!check_betas(stage.beta_schedule, stage.timesteps, network_name(index), faults)) return;
  if (zero_terminal_snr) {
    check_last_step(
        stage, index, zero_terminal_snr, "/decoder/zero_terminal_snr", "zero_terminal_snr", faults);
  }
}

namespace {

void check_loss(const UnetPlan& stage, size_t i, Faults& faults) {
  if (stage.loss.min_snr_gamma && stage.p2_loss_weight_gamma > 0) {
    faults.error(
        "/train/min_snr_gamma",
        fmt::format("excludes decoder.p2_loss_weight_gamma: both weigh the loss of unet {} by its "
                    "signal-to-noise ratio, and p2_loss_weight_gamma is {}; set one of them to "
                    "null or 0",
                    i + 1,
                    stage.p2_loss_weight_gamma));
  }
  check_dream(stage.loss.dream, stage.objective, network_name(i), faults);
}

}  // namespace

void plan_losses(const DecoderTrainConfig& train, DecoderPlan& plan, Faults& faults) {
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (train.unet_training_mask && !train.unet_training_mask->at(i)) continue;
    UnetPlan& stage = plan.stages[i];
    stage.loss = train.loss_plan(i);
    check_loss(stage, i, faults);
  }
}

}  // namespace dalle2
