// SPDX-License-Identifier: MIT
// `decoder` and `decoder.unets[i]` of a decoder config.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/faults.h"
#include "config/reading/reflect.h"
#include "config/shared/clip_config.h"
#include "config/shared/layout.h"
#include "config/shared/train_options.h"
#include "config/vae/vae_config.h"

namespace dalle2 {

struct UnetConfig {
  static constexpr const char* kDoc =
      "One denoising network, with the constructor arguments of the reference's Unet. A list over "
      "the resolutions has one value for each entry of `dim_mults`.";

  int64_t dim = 0;                 // required
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
  UnetLayout layout;  ///< no key: of the root's `written_by`

  void fields(auto& f) {
    D2_REQUIRED(dim, "Base width of the network, in channels; even.", within(4, most::kDim));
    D2_REQUIRED(
        dim_mults,
        "Width of each resolution as a multiple of `dim`, from high to low; each halves the side "
        "of the feature map. Starts with 1 unless `memory_efficient`.",
        within(1, most::kDimMult).not_empty());
    D2_FIELD(
        image_embed_dim,
        "Width of the image embeddings; needed by the first unet, unless `decoder.unconditional`.",
        within(1, most::kWidth));
    D2_FIELD(text_embed_dim,
             "Width of the text encodings; needed with `cond_on_text_encodings`.",
             within(1, most::kWidth));
    D2_FIELD(cond_on_text_encodings, "Condition on text encodings; null is false.");
    D2_FIELD(
        cond_dim, "Width of the conditioning tokens; null for `dim`.", within(1, most::kWidth));
    D2_FIELD(channels,
             "No effect here: `decoder.channels` applies to every unet.",
             within(1, most::kWidth));
    D2_FIELD(self_attn, "Full self attention, at all resolutions or each.");
    D2_FIELD(attn_dim_head,
             "Width of a self attention head. (Cross attention has 8 heads of width 64.)",
             within(1, most::kHeadWidth));
    D2_FIELD(attn_heads, "Heads of the self attention.", within(1, most::kHeads));
    D2_FIELD(init_cross_embed,
             "Start with parallel convolutions of several kernel sizes. False: with one, of "
             "`init_conv_kernel_size`.");
    D2_FIELD(num_image_tokens,
             "Conditioning tokens made from the image embedding.",
             within(1, most::kTokens));
    D2_FIELD(
        num_time_tokens, "Conditioning tokens made from the timestep.", within(1, most::kTokens));
    D2_FIELD(out_dim, "No effect, as in the reference.", within(1, most::kWidth));
    D2_FIELD(channels_out,
             "No effect here: the decoder sets it (twice the channels with a learned variance).",
             within(1, most::kWidth));
    D2_FIELD(lowres_cond, "No effect here: the decoder sets it for every unet but the first.");
    D2_FIELD(lowres_noise_cond, "No effect here: see `decoder.use_noise_for_lowres_cond`.");
    D2_FIELD(cond_on_image_embeds,
             "No effect here: the decoder sets it for the first unet, unless "
             "`decoder.unconditional`.");
    D2_FIELD(self_cond, "Feed the previous estimate back in (Chen et al. 2022).");
    D2_FIELD(sparse_attn, "Linear attention where there is no full self attention.");
    D2_FIELD(cosine_sim_cross_attn, "Cosine similarity in the cross attention.");
    D2_FIELD(cosine_sim_self_attn, "Cosine similarity in the self attention.");
    D2_FIELD(attend_at_middle, "No effect, as in the reference: the middle always has attention.");
    D2_FIELD(max_text_len,
             "Text tokens; longer texts are cut, shorter ones padded.",
             within(1, most::kTokens));
    D2_FIELD(add_image_embeds_to_time, "Also add the image embedding to the time vector.");
    D2_FIELD(init_dim,
             "Width after the first convolution; null or equal to `dim`.",
             within(1, most::kWidth));
    D2_FIELD(init_conv_kernel_size,
             "Kernel size without `init_cross_embed`; odd.",
             within(1, most::kKernel));
    D2_FIELD(init_cross_embed_kernel_sizes,
             "Kernel sizes with `init_cross_embed`; all odd.",
             within(1, most::kKernel).not_empty());
    D2_FIELD(resnet_groups,
             "Groups of the group norms, for all resolutions or each; must divide the widths.",
             within(1, most::kWidth));
    D2_FIELD(resnet_weight_standardization,
             "Standardise the convolutions' weights (Qiao et al. 2019).");
    D2_FIELD(num_resnet_blocks,
             "Residual blocks after the first one, for all resolutions or each.",
             within(0, most::kLayers));
    D2_FIELD(cross_embed_downsample,
             "Halve the feature map with parallel convolutions of several kernel sizes.");
    D2_FIELD(cross_embed_downsample_kernel_sizes,
             "Kernel sizes of `cross_embed_downsample`; all even.",
             within(2, most::kKernel).not_empty());
    D2_FIELD(
        memory_efficient,
        "Halve the feature map before the blocks of a resolution, not after them (one more halving "
        "in total).");
    D2_FIELD(scale_skip_connection, "Multiply the skip connections by 2^-0.5.");
    D2_FIELD(
        pixel_shuffle_upsample,
        "Double the feature map by pixel shuffle. False: by nearest-neighbour interpolation and a "
        "convolution.");
    D2_FIELD(final_conv_kernel_size,
             "Kernel size of the last convolution; odd.",
             within(1, most::kKernel));
    D2_FIELD(
        combine_upsample_fmaps,
        "Feed the outputs of all resolutions into the last block (U-squared net); `dim` must be "
        "divisible by 8.");
    D2_FIELD(checkpoint_during_training,
             "Compute activations again in the backward pass: less memory, same gradients.");
    f.note(!attend_at_middle,
           "attend_at_middle",
           "has no effect, as in the reference: the middle always attends");
    f.note(out_dim.has_value(), "out_dim", "has no effect, as in the reference");
  }
};

struct LatentConfig {
  static constexpr const char* kDoc =
      "The frozen VQGAN-VAE in whose latent space a unet works (latent diffusion, Rombach et al. "
      "2022). Checkpoints of the decoder hold its weights, from which a run resumes.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::string checkpoint;  // required
  std::optional<VaeConfig> model;
  bool use_ema = true;
  double scale = 1.0;

  void fields(auto& f) {
    D2_REQUIRED(
        checkpoint,
        "File of a VAE: `checkpoint.pth` of a run, `vae.N.pt`, `vae.N.ema.pt`, or safetensors.",
        not_empty());
    D2_FIELD(
        model,
        "The `vae` section of its config, for files without one, such as `vae.N.pt`. Null: the one "
        "in the file.");
    D2_FIELD(use_ema, "Use the averaged weights if the file has them.");
    D2_FIELD(
        scale,
        "Extension: factor of the latents before they are noised, best 1 divided by the standard "
        "deviation that a run prints. The reference uses 1.",
        above(0));
  }
};

struct DecoderConfig {
  static constexpr const char* kDoc =
      "The cascade of diffusion models, with the constructor arguments of the reference's Decoder. "
      "A list has one value for each unet; the upper unets are all but the first.";
  /// The reference's constructor refuses what it does not know.
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::vector<UnetConfig> unets;  // required
  std::optional<int64_t> image_size;
  std::optional<std::vector<int64_t>> image_sizes;
  std::optional<ClipConfig> clip;
  std::optional<std::vector<std::optional<LatentConfig>>> vae;
  int64_t channels = 3;
  int64_t timesteps = 1000;
  OneOrMany<std::optional<int64_t>> sample_timesteps = std::nullopt;
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
  OneOrMany<double> blur_sigma = 0.6;  // [low, high]: drawn from the range for each batch
  OneOrMany<int64_t> blur_kernel_size = int64_t{3};
  double lowres_noise_sample_level = 0.2;
  bool clip_denoised = true;
  bool clip_x_start = true;
  std::optional<RawJson> clip_adapter_overrides;
  bool learned_variance_constrain_frac = false;
  double vb_loss_weight = 0.001;
  bool unconditional = false;
  bool auto_normalize_img = true;
  bool use_dynamic_thres = false;
  double dynamic_thres_percentile = 0.95;
  OneOrMany<double> p2_loss_weight_gamma = 0.0;
  double p2_loss_weight_k = 1.0;
  double ddim_sampling_eta = 0.0;
  bool zero_terminal_snr = false;     // extension: Lin et al. 2023
  Version written_by = kLastVersion;  ///< no key: the root's

  void fields(auto& f) {
    D2_REQUIRED(unets, "The networks of the cascade, low to high resolution.", not_empty());
    D2_FIELD(image_size,
             "Side of the pictures in pixels, of a single unet.",
             within(1, most::kImageSide));
    D2_FIELD(
        image_sizes,
        "Side of each unet's pictures in pixels, instead of `image_size`. The list is sorted and "
        "duplicates are removed; one size per unet must remain.",
        within(1, most::kImageSide).not_empty());
    D2_FIELD(clip, "A frozen CLIP that computes the embeddings and encodings that the data lack.");
    D2_FIELD(vae,
             "VQGAN-VAEs for the first unets, which then work in latent space; null for a unet on "
             "pixels. Needs `auto_normalize_img`.",
             Limits{}.one_is_list());
    D2_FIELD(channels,
             "Channels of the pictures: 3, 1 for grey, or 4 with transparency.",
             within(1, most::kWidth));
    D2_FIELD(timesteps, "Steps of the noising chain in training.", within(1, most::kTimesteps));
    D2_FIELD(sample_timesteps,
             "Sampling steps. Fewer than `timesteps` use DDIM; null, or the same number, takes all "
             "steps (DDPM).",
             within(1, most::kTimesteps));
    D2_FIELD(loss_type, "Absolute, squared or Huber distance.");
    D2_FIELD(beta_schedule,
             "Noise schedule of each unet. Null: cosine, but linear for the last of several "
             "unets.");
    D2_FIELD(
        learned_variance,
        "Also learn the variance (Nichol & Dhariwal 2021). A single value applies to the **first "
        "unet only**; the others do not learn it.");
    D2_FIELD(image_cond_drop_prob,
             "Probability of dropping the image embedding, for classifier-free guidance.",
             within(0, 1));
    D2_FIELD(text_cond_drop_prob, "Probability of dropping the text encodings.", within(0, 1));
    D2_FIELD(predict_x_start, "Predict the clean picture instead of the noise.");
    D2_FIELD(predict_v,
             "Predict v (Salimans & Ho 2022); takes precedence over `predict_x_start*`.");
    D2_FIELD(predict_x_start_for_latent_diffusion,
             "Predict the clean latent in a VAE's latent space, and the noise elsewhere; takes "
             "precedence over `predict_x_start`.");
    D2_FIELD(
        random_crop_sizes,
        "Side in pixels of the random crop on which each unet trains; null for whole pictures, as "
        "the first unet must have.",
        within(1, most::kImageSide));
    D2_FIELD(use_noise_for_lowres_cond,
             "Add noise to the low-resolution picture of upper unets (Imagen).");
    D2_FIELD(use_blur_for_lowres_cond,
             "Blur the low-resolution picture of upper unets. Each needs noise or blur.");
    D2_FIELD(lowres_downsample_first,
             "Shrink the picture to the previous unet's size before it is blurred and enlarged.");
    D2_FIELD(blur_prob, "Probability of blurring a batch.", within(0, 1));
    D2_FIELD(blur_sigma,
             "Standard deviation of the blur in pixels, or its range [low, high] for a batch.",
             above(0));
    D2_FIELD(blur_kernel_size,
             "Side of the blur's kernel in pixels, odd, or its range [low, high] for a batch.",
             within(1, most::kKernel));
    D2_FIELD(lowres_noise_sample_level,
             "Noise level of the low-resolution picture when sampling, from 0 to 1 (pure noise).",
             at_least(0).below(1));
    D2_FIELD(clip_denoised,
             "No effect, as in the reference: sampling clips, except in a VAE's latent space.");
    D2_FIELD(clip_x_start,
             "No effect, as in the reference: sampling clips, except in a VAE's latent space.");
    D2_FIELD(clip_adapter_overrides,
             "No effect, as in the reference, whose configs create their own adapters.");
    D2_FIELD(learned_variance_constrain_frac, "Bound the learned variance with a sigmoid.");
    D2_FIELD(
        vb_loss_weight, "Weight of the variational bound, which trains the variance.", at_least(0));
    D2_FIELD(unconditional, "No conditioning; no embeddings are read.");
    D2_FIELD(auto_normalize_img,
             "Map pictures from [0, 1] to [-1, 1]; false if they are in [-1, 1].");
    D2_FIELD(use_dynamic_thres, "Dynamic thresholding when sampling (Imagen).");
    D2_FIELD(dynamic_thres_percentile,
             "Quantile of the magnitudes that dynamic thresholding scales to 1.",
             within(0, 1));
    D2_FIELD(p2_loss_weight_gamma,
             "Exponent of the p2 loss weight (Choi et al. 2022); 0 is off, 1 is recommended.",
             at_least(0));
    D2_FIELD(p2_loss_weight_k, "Offset of the p2 loss weight.", above(0));
    D2_FIELD(ddim_sampling_eta, "Noise of DDIM, from 0 (none) to 1 (as DDPM).", within(0, 1));
    D2_FIELD(zero_terminal_snr,
             "Extension: the last step is pure noise (Lin et al. 2023); needs `predict_v` or "
             "`predict_x_start`, without `learned_variance`.");
    f.note(!clip_denoised, "clip_denoised", "has no effect, as in the reference");
    f.note(clip_adapter_overrides.value_or(RawJson{"{}"}).text != "{}",
           "clip_adapter_overrides",
           "has no effect, as in the reference");
    f.note(!clip_x_start, "clip_x_start", "has no effect, as in the reference");
  }
};

/// One stage of the cascade with every per-unet rule of the reference applied.
struct UnetPlan {
  UnetConfig unet;  ///< channels, channels_out, lowres_cond, lowres_noise_cond, cond_on_* are final
  int64_t image_size = 0;  ///< side of the stage's images, pixels
  int64_t timesteps = 0;   ///< T of the training schedule
  BetaSchedule beta_schedule = BetaSchedule::cosine;
  Objective objective = Objective::eps;
  bool learned_variance = false;
  std::optional<int64_t> sample_timesteps;  ///< DDIM steps; none for DDPM over all T
  double p2_loss_weight_gamma = 0.0;
  std::optional<int64_t> random_crop_size;  ///< side, pixels
  bool lowres_blur = false;
  bool lowres_noise = false;
  std::optional<LatentConfig> latent;  ///< with its `model`; none: the stage works on pixels
  LossPlan loss;                       ///< of plan_losses

  /// Side of the maps that the unet denoises, of pictures with a side of `pixels`.
  int64_t map_side(int64_t pixels) const {
    return latent ? pixels / latent->model->reduction() : pixels;
  }
};

/// The whole cascade, low to high resolution.
struct DecoderPlan {
  DecoderConfig config;
  std::vector<UnetPlan> stages;
  DecoderLoopLayout layout = {};
  /// Whether any of these unets, from 1, takes text encodings.
  bool text_conditioned(int64_t first = 1, int64_t last = INT64_MAX) const {
    const auto end = stages.begin() + std::min(last, std::ssize(stages));
    return std::any_of(stages.begin() + first - 1, end, [](const UnetPlan& stage) {
      return stage.unet.cond_on_text_encodings.value_or(false);
    });
  }
};

/// Applies the reference's casts: scalar learned_variance holds for the first unet only, the
/// default beta_schedule ends linear, sizes are sorted and de-duplicated, unets learn their wiring.
/// What is wrong goes to `faults`, with pointers below "/decoder". @return what could be made of it
DecoderPlan plan_decoder(const DecoderConfig& config, Faults& faults);

}  // namespace dalle2
