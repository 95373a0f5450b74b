// SPDX-License-Identifier: MIT
// `prior` and `prior.net` of a prior config.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "config/reading/faults.h"
#include "config/reading/reflect.h"
#include "config/shared/clip_config.h"
#include "config/shared/layout.h"
#include "config/shared/train_options.h"

namespace dalle2 {

struct PriorNetworkConfig {
  static constexpr const char* kDoc =
      "The transformer, with the constructor arguments of the reference's DiffusionPriorNetwork.";
  /// The reference's constructor refuses what it does not know.
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  int64_t dim = 0;    // required
  int64_t depth = 0;  // required
  std::optional<int64_t> max_text_len;
  std::optional<int64_t> num_timesteps;
  int64_t num_time_embeds = 1;
  int64_t num_image_embeds = 1;
  int64_t num_text_embeds = 1;
  int64_t dim_head = 64;
  int64_t heads = 8;
  double ff_mult = 4;
  bool norm_in = false;
  bool norm_out = true;
  double attn_dropout = 0.0;
  double ff_dropout = 0.0;
  bool final_proj = true;
  bool normformer = false;
  bool rotary_emb = true;
  bool self_cond = false;
  PriorLayout layout;  ///< no key: of the root's `written_by`

  /// null is the class's default: the reference's own null crashes.
  int64_t text_len() const { return max_text_len.value_or(256); }

  void fields(auto& f) {
    D2_REQUIRED(
        dim, "Width of the tokens; equal to `prior.image_embed_dim`.", within(1, most::kDim));
    D2_REQUIRED(depth, "Number of layers.", within(1, most::kLayers));
    D2_FIELD(max_text_len,
             "Text tokens; longer texts are cut, shorter ones padded. Null is 256.",
             within(1, most::kTokens));
    D2_FIELD(num_timesteps,
             "Size of a table that embeds the timesteps, equal to `prior.timesteps`. Null: a small "
             "network embeds their sines and cosines.",
             within(1, most::kTimesteps));
    D2_FIELD(num_time_embeds, "Tokens made from the timestep.", within(1, most::kTokens));
    D2_FIELD(
        num_image_embeds, "Tokens made from the noised image embedding.", within(1, most::kTokens));
    D2_FIELD(num_text_embeds, "Tokens made from the text embedding.", within(1, most::kTokens));
    D2_FIELD(dim_head, "Width of a head.", within(2, most::kHeadWidth));
    D2_FIELD(heads, "Query heads; all share one key and value head.", within(1, most::kHeads));
    D2_FIELD(ff_mult,
             "Width of the feed-forward layers as a multiple of `dim`.",
             above(0).up_to(most::kDimMult));
    D2_FIELD(norm_in, "Normalise the tokens before the first layer.");
    D2_FIELD(norm_out, "Normalise the tokens after the last layer.");
    D2_FIELD(attn_dropout, "Dropout of the attention weights.", at_least(0).below(1));
    D2_FIELD(ff_dropout, "Dropout inside the feed-forward layers.", at_least(0).below(1));
    D2_FIELD(final_proj, "A linear layer after the transformer.");
    D2_FIELD(normformer, "A second norm inside the feed-forward layers (Shleifer et al. 2021).");
    D2_FIELD(rotary_emb, "Rotary position embeddings (Su et al. 2021).");
    D2_FIELD(self_cond, "Feed the previous estimate back in (Chen et al. 2022).");
  }
};

struct PriorConfig {
  static constexpr const char* kDoc =
      "The diffusion prior, which makes image embeddings from text, with the constructor arguments "
      "of the reference's DiffusionPrior.";
  /// The reference's constructor refuses what it does not know.
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::optional<ClipConfig> clip;
  PriorNetworkConfig net;       // required
  int64_t image_embed_dim = 0;  // required
  std::optional<int64_t> image_size;
  int64_t image_channels = 3;
  int64_t timesteps = 1000;
  std::optional<int64_t> sample_timesteps;
  double cond_drop_prob = 0.0;
  std::optional<double> text_cond_drop_prob;
  std::optional<double> image_cond_drop_prob;
  LossType loss_type = LossType::l2;
  bool predict_x_start = true;
  bool predict_v = false;
  BetaSchedule beta_schedule = BetaSchedule::cosine;
  bool condition_on_text_encodings = true;
  bool sampling_clamp_l2norm = false;
  bool sampling_final_clamp_l2norm = false;
  bool training_clamp_l2norm = false;
  bool init_image_embed_l2norm = false;
  std::optional<double> image_embed_scale;
  std::optional<RawJson> clip_adapter_overrides;
  Version written_by = kLastVersion;  ///< no key: the root's

  double text_drop_prob() const { return text_cond_drop_prob.value_or(cond_drop_prob); }
  double image_drop_prob() const { return image_cond_drop_prob.value_or(cond_drop_prob); }
  /// What embeddings are multiplied with before they are noised.
  double scale() const {
    return image_embed_scale.value_or(std::sqrt(static_cast<double>(image_embed_dim)));
  }
  Objective objective() const {
    if (predict_v) return Objective::v;
    return predict_x_start ? Objective::x_start : Objective::eps;
  }

  void fields(auto& f) {
    D2_FIELD(clip, "A frozen CLIP that embeds and encodes the captions of `data.meta_url`.");
    D2_REQUIRED(net, "The network.");
    D2_REQUIRED(image_embed_dim, "Width of the image and text embeddings.", within(1, most::kDim));
    D2_FIELD(
        image_size,
        "No effect: the embeddings do not depend on it. Null is 224, as the reference needs a number.",
        within(1, most::kImageSide));
    D2_FIELD(image_channels, "No effect, like `image_size`.", within(1, most::kWidth));
    D2_FIELD(timesteps, "Steps of the noising chain in training.", within(1, most::kTimesteps));
    D2_FIELD(sample_timesteps,
             "Sampling steps. Fewer than `timesteps` use DDIM; null, or the same number, takes all "
             "steps (DDPM).",
             within(2, most::kTimesteps));
    D2_FIELD(cond_drop_prob,
             "Probability of dropping the text and, independently, the image embedding, for "
             "classifier-free guidance.",
             within(0, 1));
    D2_FIELD(text_cond_drop_prob,
             "Probability of dropping the text; null for `cond_drop_prob`.",
             within(0, 1));
    D2_FIELD(image_cond_drop_prob,
             "Probability of dropping the noised image embedding; null for `cond_drop_prob`.",
             within(0, 1));
    D2_FIELD(loss_type, "Absolute, squared or Huber distance.");
    D2_FIELD(predict_x_start, "Predict the clean embedding; false for the noise.");
    D2_FIELD(predict_v, "Predict v (Salimans & Ho 2022); takes precedence over `predict_x_start`.");
    D2_FIELD(beta_schedule, "Noise schedule.");
    D2_FIELD(condition_on_text_encodings, "Also condition on the encodings of the text's tokens.");
    D2_FIELD(sampling_clamp_l2norm,
             "Scale the estimate of the clean embedding to the norm `image_embed_scale` at every "
             "sampling step. Only with `predict_x_start`.");
    D2_FIELD(
        sampling_final_clamp_l2norm,
        "Like `sampling_clamp_l2norm`, once at the end of sampling. Only with `predict_x_start`.");
    D2_FIELD(training_clamp_l2norm,
             "Like `sampling_clamp_l2norm`, in training. Only with `predict_x_start`.");
    D2_FIELD(init_image_embed_l2norm,
             "Scale the initial noise of sampling to the norm `image_embed_scale`.");
    D2_FIELD(
        image_embed_scale,
        "Factor of embeddings before they are noised. Null: the square root of `image_embed_dim`, "
        "with which the entries of embeddings of norm 1 have a variance of 1.",
        above(0));
    D2_FIELD(clip_adapter_overrides,
             "No effect, as in the reference, whose configs create their own adapters.");
    f.note(clip_adapter_overrides.value_or(RawJson{"{}"}).text != "{}",
           "clip_adapter_overrides",
           "has no effect, as in the reference");
  }
};

/// A prior that can be built, and what `train` asks of its loss.
struct PriorPlan {
  PriorConfig config;
  LossPlan loss;
  DdimLayout layout = {};
};

/// Checks what the limits of single values do not say; `loss` is checked against the objective.
/// What is wrong goes to `faults`, with pointers below "/prior" and "/train".
PriorPlan plan_prior(const PriorConfig& config, const LossPlan& loss, Faults& faults);

}  // namespace dalle2
