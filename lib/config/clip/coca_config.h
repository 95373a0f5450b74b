// SPDX-License-Identifier: MIT
// The networks of a CoCa of coca-pytorch, by the arguments of its constructor.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

struct SimpleVitConfig {
  static constexpr const char* kDoc =
      "The image encoder of a CoCa, as in the README of coca-pytorch: `SimpleViT` of vit-pytorch, "
      "with or without patch dropout, in an `Extractor`. These are the arguments of `SimpleViT`.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  int64_t image_size = 0;   // required
  int64_t patch_size = 0;   // required
  int64_t num_classes = 0;  // required
  int64_t dim = 0;          // required
  int64_t depth = 0;        // required
  int64_t heads = 0;        // required
  int64_t mlp_dim = 0;      // required
  int64_t channels = 3;
  int64_t dim_head = 64;
  double patch_dropout = 0.5;

  void fields(auto& f) {
    D2_REQUIRED(image_size, "Side of its input pictures in pixels.", within(1, most::kImageSide));
    D2_REQUIRED(patch_size,
                "Side of a patch in pixels; must divide `image_size`.",
                within(1, most::kImageSide));
    D2_REQUIRED(num_classes,
                "Classes of its last layer, which no embedding needs.",
                within(1, most::kWidth));
    D2_REQUIRED(
        dim, "Width of its tokens; a multiple of 4, and more than 4.", within(1, most::kDim));
    D2_REQUIRED(depth, "Layers of its transformer.", within(1, most::kLayers));
    D2_REQUIRED(heads, "Attention heads.", within(1, most::kHeads));
    D2_REQUIRED(mlp_dim, "Width of the feed-forward layers.", within(1, most::kWidth));
    D2_FIELD(channels, "Channels of the pictures; must be 3.", within(1, most::kWidth));
    D2_FIELD(dim_head, "Width of an attention head.", within(1, most::kHeadWidth));
    D2_FIELD(patch_dropout, "No effect: all patches are seen.", within(0, 1));
    f.check(patch_size < 1 || image_size % patch_size == 0,
            "patch_size",
            fmt::format("must divide image_size, {}; got {}", image_size, patch_size));
    f.check(dim % 4 == 0 && dim > 4,
            "dim",
            fmt::format("must be a multiple of 4, and more than 4, for the sines and cosines of "
                        "the positions; got {}",
                        dim));
    f.check(channels == 3, "channels", fmt::format("must be 3, got {}", channels));
  }
};

struct CocaConfig {
  static constexpr const char* kTag = "coca";
  static constexpr const char* kDoc =
      "The arguments that a CoCa of coca-pytorch was made with. Those that matter only while such "
      "a CoCa is trained are read, but have no effect.";
  /// Here a slip of the pen would be another network.
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  int64_t dim = 0;               // required
  int64_t num_tokens = 0;        // required
  int64_t unimodal_depth = 0;    // required
  int64_t multimodal_depth = 0;  // required
  std::optional<int64_t> dim_latents;
  std::optional<int64_t> image_dim;
  int64_t num_img_queries = 256;
  int64_t dim_head = 64;
  int64_t heads = 8;
  int64_t ff_mult = 4;
  std::optional<SimpleVitConfig> img_encoder;
  double caption_loss_weight = 1.0;
  double contrastive_loss_weight = 1.0;
  int64_t pad_id = 0;
  int64_t max_text_len = 256;

  int64_t latent_width() const { return dim_latents.value_or(dim); }
  int64_t image_width() const { return image_dim.value_or(dim); }

  static constexpr double kMostTokens = 1 << 24;  ///< of a vocabulary

  void fields(auto& f) {
    D2_REQUIRED(
        dim, "Width of the tokens, and of embeddings and text encodings.", within(1, most::kDim));
    D2_REQUIRED(
        num_tokens,
        "Tokens of the vocabulary; OpenAI's vocabulary, which the reference's tokenizer uses, "
        "has 49408.",
        within(1, kMostTokens));
    D2_REQUIRED(unimodal_depth, "Layers of the text transformer.", within(1, most::kLayers));
    D2_REQUIRED(multimodal_depth,
                "Layers that only captioning needs. Checkpoints hold their weights.",
                within(0, most::kLayers));
    D2_FIELD(dim_latents,
             "Width of the vectors that pictures and texts are compared by; null for `dim`.",
             within(1, most::kWidth));
    D2_FIELD(image_dim,
             "Width of the image encoder's tokens, `img_encoder.dim`; null for `dim`.",
             within(1, most::kDim));
    D2_FIELD(num_img_queries,
             "Queries that pool the tokens of a picture for captioning; one more query makes the "
             "picture's embedding.",
             within(0, most::kTokens));
    D2_FIELD(dim_head, "Width of an attention head; even.", within(1, most::kHeadWidth));
    D2_FIELD(heads, "Attention heads.", within(1, most::kHeads));
    D2_FIELD(ff_mult,
             "Width of the feed-forward layers as a multiple of `dim`.",
             within(1, most::kDimMult));
    D2_FIELD(img_encoder,
             "Extension: the arguments of the image encoder, which is an object in Python. Must be "
             "given.");
    D2_FIELD(caption_loss_weight, kOfTraining);
    D2_FIELD(contrastive_loss_weight, kOfTraining);
    D2_FIELD(pad_id,
             "The class token of a text does not see tokens with this number.",
             within(-kMostTokens, kMostTokens));
    D2_FIELD(max_text_len,
             "Extension: number of tokens of a text, `max_text_len` of the reference's "
             "CoCaAdapter. Longer texts are cut, shorter ones padded with 0.",
             within(1, 256));
    f.check(dim_head % 2 == 0,
            "dim_head",
            fmt::format("must be even for rotary embeddings; got {}", dim_head));
    f.check(!img_encoder || image_width() == img_encoder->dim,
            "image_dim",
            fmt::format("expected {}, the dim of img_encoder, got {}",
                        img_encoder.value_or(SimpleVitConfig{}).dim,
                        image_dim ? std::to_string(*image_dim)
                                  : fmt::format("none, which stands for dim, {}", dim)));
  }

  static constexpr const char* kOfTraining = "No effect: it matters only in training.";
};

/// What to say of a CoCa without an image encoder, at `img_encoder`.
inline constexpr const char* kCocaNeedsEncoder =
    "required, but missing: without it a CoCa embeds no pictures, and in the reference it is an object "
    "of a Python program, for which a config has no place. If yours is the SimpleViT of "
    "coca-pytorch's README, give its arguments: {\"image_size\": 256, \"patch_size\": 32, "
    "\"num_classes\": 1000, \"dim\": 1024, \"depth\": 6, \"heads\": 16, \"mlp_dim\": 2048}";

/// What to do with another image encoder than SimpleViT.
inline constexpr const char* kOtherCocaEncoders =
    "With another image encoder, make the embeddings in Python, as .npy files, and give them to a "
    "run: /data/img_embeddings_url of a decoder, /data/image_url and /data/text_url of a prior.";

}  // namespace dalle2
