// SPDX-License-Identifier: MIT
// `decoder` and `decoder.unets[i]` of a decoder config (config.md, sections 2 and 3).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/types.h"

namespace dalle2 {

struct UnetConfig {
  int64_t dim = 0;  // required
  std::vector<int64_t> dim_mults;  // required
  std::optional<int64_t> image_embed_dim;
  std::optional<int64_t> text_embed_dim;
  std::optional<bool> cond_on_text_encodings;
  std::optional<int64_t> cond_dim;
  int64_t channels = 3;
  OneOrMany<bool> self_attn = false;
  int64_t attn_dim_head = 32;
  int64_t attn_heads = 16;
  bool init_cross_embed = true;
  int64_t num_image_tokens = 4;
  int64_t num_time_tokens = 2;
  std::optional<int64_t> out_dim;
  std::optional<int64_t> channels_out;
  bool lowres_cond = false;
  bool lowres_noise_cond = false;
  bool cond_on_image_embeds = false;
  bool self_cond = false;
  bool sparse_attn = false;
  bool cosine_sim_cross_attn = false;
  bool cosine_sim_self_attn = false;
  bool attend_at_middle = true;
  int64_t max_text_len = 256;
  bool add_image_embeds_to_time = true;
  std::optional<int64_t> init_dim;
  int64_t init_conv_kernel_size = 7;
  std::vector<int64_t> init_cross_embed_kernel_sizes = {3, 7, 15};
  OneOrMany<int64_t> resnet_groups = int64_t{8};
  bool resnet_weight_standardization = false;
  OneOrMany<int64_t> num_resnet_blocks = int64_t{2};
  bool cross_embed_downsample = false;
  std::vector<int64_t> cross_embed_downsample_kernel_sizes = {2, 4};
  bool memory_efficient = false;
  bool scale_skip_connection = false;
  bool pixel_shuffle_upsample = true;
  int64_t final_conv_kernel_size = 1;
  bool combine_upsample_fmaps = false;
  bool checkpoint_during_training = false;
};

struct ClipConfig {
  std::string make = "openai";
  std::string model = "ViT-L/14";
};

struct DecoderConfig {
  std::vector<UnetConfig> unets;  // required
  std::optional<int64_t> image_size;
  std::optional<std::vector<int64_t>> image_sizes;
  std::optional<ClipConfig> clip;
  int64_t channels = 3;
  int64_t timesteps = 1000;
  std::optional<OneOrMany<std::optional<int64_t>>> sample_timesteps;
  LossType loss_type = LossType::l2;
  std::optional<std::vector<BetaSchedule>> beta_schedule;
  OneOrMany<bool> learned_variance = true;
  double image_cond_drop_prob = 0.1;
  double text_cond_drop_prob = 0.5;
  OneOrMany<bool> predict_x_start = false;
  OneOrMany<bool> predict_v = false;
  bool predict_x_start_for_latent_diffusion = false;
  std::optional<std::vector<std::optional<int64_t>>> random_crop_sizes;
  OneOrMany<bool> use_noise_for_lowres_cond = false;
  OneOrMany<bool> use_blur_for_lowres_cond = true;
  bool lowres_downsample_first = true;
  double blur_prob = 0.5;
  OneOrMany<double> blur_sigma = 0.6;          // [low, high]: drawn from the range for each batch
  OneOrMany<int64_t> blur_kernel_size = int64_t{3};
  double lowres_noise_sample_level = 0.2;
  bool clip_denoised = true;
  bool clip_x_start = true;
  bool learned_variance_constrain_frac = false;
  double vb_loss_weight = 0.001;
  bool unconditional = false;
  bool auto_normalize_img = true;
  bool use_dynamic_thres = false;
  double dynamic_thres_percentile = 0.95;
  OneOrMany<double> p2_loss_weight_gamma = 0.0;
  double p2_loss_weight_k = 1.0;
  double ddim_sampling_eta = 0.0;
  bool zero_terminal_snr = false;  // extension: Lin et al. 2023
};

/// One stage of the cascade with every per-unet rule of the reference applied.
struct UnetPlan {
  UnetConfig unet;  ///< channels, channels_out, lowres_cond, lowres_noise_cond, cond_on_* are final
  int64_t image_size = 0;           ///< side of the stage's images, pixels
  int64_t timesteps = 0;            ///< T of the training schedule
  BetaSchedule beta_schedule = BetaSchedule::cosine;
  Objective objective = Objective::eps;
  bool learned_variance = false;
  std::optional<int64_t> sample_timesteps;  ///< DDIM steps; none for DDPM over all T
  double p2_loss_weight_gamma = 0.0;
  std::optional<int64_t> random_crop_size;  ///< side, pixels
  bool lowres_blur = false;
  bool lowres_noise = false;
};

/// The whole cascade, low to high resolution.
struct DecoderPlan {
  DecoderConfig config;
  std::vector<UnetPlan> stages;
  bool text_conditioned() const {
    for (const UnetPlan& stage : stages) {
      if (stage.unet.cond_on_text_encodings.value_or(false)) return true;
    }
    return false;
  }
};

/// Applies the reference's casts: scalar learned_variance holds for the first unet only, the default
/// beta_schedule ends linear, sizes are sorted and de-duplicated, unets learn their wiring.
/// @throws ConfigError listing every fault with its JSON pointer (below "/decoder")
DecoderPlan plan_decoder(const DecoderConfig& config);

}  // namespace dalle2
