// SPDX-License-Identifier: MIT
// The two towers of a CLIP, in the keys of open_clip's model configs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/reading/reflect.h"

namespace dalle2 {

struct ClipNormConfig {
  static constexpr const char* kDoc = "The layer norms of a transformer.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  double eps = 1e-5;

  void fields(auto& f) { D2_FIELD(eps, "Added to the variance.", above(0).up_to(1)); }
};

struct ClipVisionConfig {
  static constexpr const char* kDoc =
      "A vision transformer, or a ResNet with attention pooling if `layers` is a list.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  OneOrMany<int64_t> layers = int64_t{12};
  int64_t width = 768;
  int64_t head_width = 64;
  double mlp_ratio = 4.0;
  int64_t patch_size = 16;
  int64_t image_size = 224;
  ClipNormConfig norm_kwargs = {};

  bool is_resnet() const { return !layers.is_one(); }
  /// Width of the tokens in each layer of a transformer, or in the pooling of a ResNet.
  int64_t attention_width() const { return is_resnet() ? kResNetMult * width : width; }
  int64_t heads() const { return attention_width() / head_width; }
  /// Pixels that become one token, along a side.
  int64_t reduction() const { return is_resnet() ? kResNetMult : patch_size; }
  /// Tokens along a side.
  int64_t grid() const { return image_size / reduction(); }

  /// A ResNet halves the picture five times, and its last map is this many times `width` wide.
  static constexpr int64_t kResNetMult = 32;
  static constexpr size_t kResNetStages = 4;

  void fields(auto& f) {
    D2_FIELD(
        layers,
        "Layers of a vision transformer, or a list with the blocks in the four stages of a ResNet.",
        within(1, most::kLayers).not_empty());
    D2_FIELD(width, "Width of the tokens; for a ResNet, of its stem.", within(1, most::kDim));
    D2_FIELD(head_width, "Width of an attention head.", within(1, most::kHeadWidth));
    D2_FIELD(mlp_ratio,
             "Width of the feed-forward layers as a multiple of `width`.",
             above(0).up_to(most::kDimMult));
    D2_FIELD(patch_size,
             "Side of a patch in pixels; a ResNet has no patches.",
             within(1, most::kImageSide));
    D2_FIELD(image_size,
             "Side of the input pictures in pixels; for a ResNet, a multiple of 32 from 64 on.",
             within(1, most::kImageSide));
    D2_FIELD(norm_kwargs, "Its layer norms; a ResNet has none.");
    f.check(
        layers.is_one() || layers.size() == kResNetStages,
        "layers",
        fmt::format(
            "must be a number, or {} of them for a ResNet; got {}", kResNetStages, layers.size()));
    // Rules are calculated from values that are out of range too; what is wrong then has been said.
    const bool in_range = width >= 1 && static_cast<double>(width) <= most::kDim && head_width >= 1;
    const int64_t attention = in_range ? attention_width() : 0;
    f.check(
        !in_range || attention % head_width == 0,
        "head_width",
        fmt::format("must divide the width of the attention, {}; got {}", attention, head_width));
    f.check(!is_resnet() || width % 2 == 0, "width", "must be even for a ResNet");
    f.check(!is_resnet() || image_size % kResNetMult == 0,
            "image_size",
            fmt::format("must be a multiple of {} for a ResNet; got {}", kResNetMult, image_size));
    f.check(image_size >= reduction(),
            "image_size",
            fmt::format("must be {} or more, which is one token; got {}", reduction(), image_size));
  }
};

struct ClipTextConfig {
  static constexpr const char* kDoc = "The text tower, a causal transformer.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  int64_t context_length = 77;
  int64_t vocab_size = 49408;
  int64_t width = 512;
  int64_t heads = 8;
  int64_t layers = 12;
  double mlp_ratio = 4.0;
  ClipNormConfig norm_kwargs = {};

  /// Tokens that begin and end a text: the last two of the vocabulary.
  int64_t start_token() const { return vocab_size - 2; }
  int64_t end_token() const { return vocab_size - 1; }

  void fields(auto& f) {
    D2_FIELD(context_length,
             "Tokens of a text, including the start and end tokens.",
             within(3, most::kTokens));
    D2_FIELD(vocab_size, "Tokens of the vocabulary.", within(514, 1 << 24));
    D2_FIELD(width, "Width of the tokens.", within(1, most::kDim));
    D2_FIELD(heads, "Attention heads.", within(1, most::kHeads));
    D2_FIELD(layers, "Layers of the transformer.", within(1, most::kLayers));
    D2_FIELD(mlp_ratio,
             "Width of the feed-forward layers as a multiple of `width`.",
             above(0).up_to(most::kDimMult));
    D2_FIELD(norm_kwargs, "Its layer norms.");
    f.check(heads < 1 || width % heads == 0,
            "heads",
            fmt::format("must divide width, {}; got {}", width, heads));
  }
};

/// How a picture of any size becomes one that a CLIP sees: open_clip's transform for inference, but for
/// the normalisation.
struct ClipPreprocessing {
  int64_t side = 0;  ///< of the square that the CLIP sees, pixels
  std::string resize_mode = "shortest", interpolation = "bicubic";
  int64_t fill_color = 0;

  /// Whether a picture of this size is made larger.
  bool enlarges(int64_t width, int64_t height) const {
    return (resize_mode == "longest" ? std::max(width, height) : std::min(width, height)) < side;
  }
};

struct ClipNetworkConfig {
  static constexpr const char* kDoc =
      "The networks of a CLIP, in the keys of open_clip's model configs; `image_*` are those of "
      "their `preprocess_cfg`.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  /// Declared for GCC 12, which takes members of nested aggregates for uninitialised.
  ClipNetworkConfig() = default;

  int64_t embed_dim = 512;
  ClipVisionConfig vision_cfg;
  ClipTextConfig text_cfg;
  bool quick_gelu = false;
  double init_logit_scale = std::log(1 / 0.07);
  std::vector<double> image_mean = {0.48145466, 0.4578275, 0.40821073};
  std::vector<double> image_std = {0.26862954, 0.26130258, 0.27577711};
  std::string image_interpolation = "bicubic", image_resize_mode = "shortest";
  int64_t image_fill_color = 0;

  ClipPreprocessing preprocessing() const {
    return {vision_cfg.image_size, image_resize_mode, image_interpolation, image_fill_color};
  }

  void fields(auto& f) {
    D2_FIELD(embed_dim, "Width of the embeddings of pictures and texts.", within(1, most::kWidth));
    D2_FIELD(vision_cfg, "The image tower.");
    D2_FIELD(text_cfg, "The text tower.");
    D2_FIELD(
        quick_gelu,
        "x * sigmoid(1.702 x) instead of GELU, as for OpenAI's weights and open_clip's models with "
        "`-quickgelu` in their names.");
    D2_FIELD(init_logit_scale, "Initial logarithm of the inverse temperature.");
    D2_FIELD(image_mean,
             "Subtracted from the red, green and blue of a picture in [0, 1].",
             any_value().entries(3));
    D2_FIELD(image_std, "Divisor of red, green and blue, after `image_mean`.", above(0).entries(3));
    D2_FIELD(
        image_resize_mode,
        "How `shards embed`, `sample --image` and a prior's run fit pictures to "
        "`vision_cfg.image_size`: `shortest` cuts the longer side, `squash` changes the aspect "
        "ratio, `longest` adds margins to the shorter side.",
        one_of({"shortest", "squash", "longest"}));
    D2_FIELD(image_interpolation, "The filter that resizes them.", one_of({"bicubic", "bilinear"}));
    D2_FIELD(image_fill_color, "Value of the margins, from black on.", within(0, 255));
  }
};

}  // namespace dalle2
