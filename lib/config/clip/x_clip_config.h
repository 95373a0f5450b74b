// SPDX-License-Identifier: MIT
// The networks of a CLIP of x-clip, by the arguments of its constructor.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/reflect.h"

namespace dalle2 {

struct XClipConfig {
  static constexpr const char* kTag = "x-clip";
  static constexpr const char* kDoc = "The arguments that a CLIP of x-clip was made with.";
  /// Here a slip of the pen would be another network.
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  int64_t dim_text = 512;
  int64_t dim_image = 512;
  int64_t dim_latent = 512;
  int64_t num_text_tokens = 10'000;
  int64_t text_enc_depth = 6;
  int64_t text_seq_len = 256;
  int64_t text_heads = 8;
  int64_t text_dim_head = 64;
  bool text_has_cls_token = true;
  int64_t text_pad_id = 0;
  bool text_rotary_pos_emb = false;
  bool text_causal_mask = false;
  std::optional<int64_t> text_eos_id;
  bool text_encode_without_mask = false;
  int64_t visual_enc_depth = 6;
  int64_t visual_heads = 8;
  int64_t visual_dim_head = 64;
  int64_t visual_image_size = 256;
  int64_t visual_patch_size = 32;
  double visual_patch_dropout = 0.5;
  bool visual_has_cls_token = true;
  int64_t channels = 3;
  bool use_all_token_embeds = false;
  bool downsample_image_embeds = false;
  bool decoupled_contrastive_learning = false;
  bool extra_latent_projection = false;
  bool use_mlm = false;
  double text_ssl_loss_weight = 0.05;
  bool use_visual_ssl = false;
  std::string visual_ssl_type = "simsiam";
  int64_t visual_ssl_hidden_layer = -1;
  double simclr_temperature = 0.1;
  double image_ssl_loss_weight = 0.05;
  double multiview_loss_weight = 0.1;
  bool checkpoint_during_training = false;
  double sim_reg_loss_weight = 0.0;
  double mlm_mask_prob = 0.15;
  double mlm_replace_prob = 0.9;
  double mlm_random_token_prob = 0.0;
  int64_t mlm_mask_token_id = 2;
  int64_t mlm_pad_token_id = 0;
  std::vector<int64_t> mlm_mask_ignore_token_ids;

  /// Rows of the table of tokens: masked language modelling has one token more.
  int64_t token_rows() const { return num_text_tokens + (use_mlm ? 1 : 0); }
  /// Entries of a head of the text transformer that are rotated.
  int64_t rotary_dim() const { return std::min<int64_t>(text_dim_head, kMostRotaryEntries); }
  int64_t num_patches() const {
    const int64_t side = visual_image_size / visual_patch_size;
    return side * side;
  }

  static constexpr int64_t kMostRotaryEntries = 32;
  static constexpr const char* kOfTraining = "No effect: it matters only in training.";

  void fields(auto& f) {
    D2_FIELD(dim_text, "Width of the tokens of a text, and of text encodings.", width());
    D2_FIELD(dim_image, "Width of the tokens of a picture.", width());
    D2_FIELD(dim_latent, "Width of the embeddings.", within(1, most::kWidth));
    D2_FIELD(num_text_tokens,
             "Tokens of the vocabulary; OpenAI's, which the reference uses, has 49408.",
             within(1, 1 << 24));
    D2_FIELD(text_enc_depth, "Layers of the text transformer.", within(1, most::kLayers));
    D2_FIELD(text_seq_len, "Tokens of a text; longer texts are cut.", within(1, most::kTokens));
    D2_FIELD(text_heads, "Attention heads of the text transformer.", within(1, most::kHeads));
    D2_FIELD(text_dim_head,
             "Width of an attention head of the text transformer.",
             within(1, most::kHeadWidth));
    D2_FIELD(text_has_cls_token, "No effect: a text has a class token in any case.");
    D2_FIELD(text_pad_id,
             "No effect: texts are padded with token 0, as in the reference's "
             "adapter.");
    D2_FIELD(text_rotary_pos_emb, "Rotary position embeddings instead of learned ones.");
    D2_FIELD(text_causal_mask, "Must be false.");
    D2_FIELD(text_eos_id, "No effect: only a causal text transformer has it.");
    D2_FIELD(text_encode_without_mask, "No effect: the reference's adapter gives no mask.");
    D2_FIELD(visual_enc_depth, "Layers of the image transformer.", within(1, most::kLayers));
    D2_FIELD(visual_heads, "Attention heads of the image transformer.", within(1, most::kHeads));
    D2_FIELD(visual_dim_head,
             "Width of an attention head of the image transformer.",
             within(1, most::kHeadWidth));
    D2_FIELD(visual_image_size, "Side of the input pictures in pixels.", side());
    D2_FIELD(
        visual_patch_size, "Side of a patch in pixels; must divide `visual_image_size`.", side());
    D2_FIELD(visual_patch_dropout, "No effect: all patches are seen.", within(0, 1));
    D2_FIELD(visual_has_cls_token, "No effect: a picture has a class token in any case.");
    D2_FIELD(channels, "Channels of the pictures; must be 3.", within(1, most::kWidth));
    D2_FIELD(use_all_token_embeds, "No effect: embeddings are those of the class tokens.");
    D2_FIELD(downsample_image_embeds, "Must be false.");
    D2_FIELD(decoupled_contrastive_learning, kOfTraining);
    D2_FIELD(extra_latent_projection, kOfTraining);
    D2_FIELD(
        use_mlm,
        "The CLIP has a network for masked language modelling, which adds a token; its weights are "
        "left out.");
    D2_FIELD(text_ssl_loss_weight, kOfTraining);
    D2_FIELD(use_visual_ssl,
             "The CLIP has a network for self-supervision; its weights are left out.");
    D2_FIELD(visual_ssl_type, kOfTraining, one_of({"simsiam", "simclr"}));
    D2_FIELD(visual_ssl_hidden_layer, kOfTraining);
    D2_FIELD(simclr_temperature, kOfTraining);
    D2_FIELD(image_ssl_loss_weight, kOfTraining);
    D2_FIELD(multiview_loss_weight, kOfTraining);
    D2_FIELD(checkpoint_during_training, kOfTraining);
    D2_FIELD(sim_reg_loss_weight, kOfTraining);
    D2_FIELD(mlm_mask_prob, kOfTraining);
    D2_FIELD(mlm_replace_prob, kOfTraining);
    D2_FIELD(mlm_random_token_prob, kOfTraining);
    D2_FIELD(mlm_mask_token_id, kOfTraining);
    D2_FIELD(mlm_pad_token_id, kOfTraining);
    D2_FIELD(mlm_mask_ignore_token_ids, kOfTraining);
    f.check(visual_patch_size < 1 || visual_image_size % visual_patch_size == 0,
            "visual_patch_size",
            fmt::format(
                "must divide visual_image_size, {}; got {}", visual_image_size, visual_patch_size));
    f.check(!text_rotary_pos_emb || rotary_dim() % 2 == 0,
            "text_dim_head",
            fmt::format("must be even, or {} and more, for rotary embeddings; got {}",
                        kMostRotaryEntries,
                        text_dim_head));
    f.check(!text_causal_mask,
            "text_causal_mask",
            "must be false: a causal text transformer has no class token, and the embedding of a "
            "text is that of this token, as in the reference's adapter");
    f.check(!downsample_image_embeds,
            "downsample_image_embeds",
            "must be false: the embedding of a picture is that of its class token, which is no map "
            "that could be halved");
    f.check(channels == 3, "channels", fmt::format("must be 3, got {}", channels));
  }

 private:
  static Limits width() { return within(1, most::kDim); }
  static Limits side() { return within(1, most::kImageSide); }
};

}  // namespace dalle2
