// SPDX-License-Identifier: MIT
#include "checkpoint/clip/coca_file.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr const char* kTokenTable = "token_emb.weight";
constexpr const char* kLogitTable = "to_logits.1.weight";

/// @param config with an image encoder
ExpectedTensors expected_tensors(const CocaConfig& config) {
  const SimpleVitConfig& encoder = *config.img_encoder;
  const int64_t dim = config.dim;
  const std::string vit = "img_encoder.vit.", vit_layers = vit + "transformer.layers";
  ExpectedTensors expected;
  expected.shapes = {
      {kTokenTable, {config.num_tokens, dim}, "num_tokens, dim"},
      {"img_queries", {config.num_img_queries + 1, dim}, "num_img_queries, dim"},
      {"img_attn_pool.to_q.weight", {config.heads * config.dim_head, dim}, "heads, dim_head, dim"},
      {"img_attn_pool.to_kv.weight",
       {2 * config.dim_head, config.image_width()},
       "dim_head, image_dim"},
      {"text_to_latents.to_latents.weight", {config.latent_width(), dim}, "dim_latents, dim"},
      {"unimodal_layers.0.fn.ff_out.1.weight", {dim, config.ff_mult * dim}, "dim, ff_mult"},
      {vit + "to_patch_embedding.2.weight",
       {encoder.dim, encoder.channels * encoder.patch_size * encoder.patch_size},
       "dim and patch_size of img_encoder"},
      {vit_layers + ".0.0.to_qkv.weight",
       {3 * encoder.heads * encoder.dim_head, encoder.dim},
       "heads, dim_head and dim of img_encoder"},
      {vit_layers + ".0.1.net.1.weight",
       {encoder.mlp_dim, encoder.dim},
       "mlp_dim and dim of img_encoder"},
      {vit + "linear_head.weight",
       {encoder.num_classes, encoder.dim},
       "num_classes and dim of img_encoder"}};
  expected.layers = {
      {"unimodal_layers", "fn.norm.gamma", config.unimodal_depth, "unimodal_depth"},
      {"multimodal_layers", "0.fn.norm.gamma", config.multimodal_depth, "multimodal_depth"},
      {vit_layers, "0.norm.weight", encoder.depth, "depth of img_encoder"}};
  return expected;
}

/// @throws DataError if they differ
void complete_tables(StateDict& tensors, const std::string& path) {
  const auto copy_of = [&](const char* name) {
    const at::Tensor* const found = find_tensor(tensors, name);
    return found == nullptr ? std::optional<at::Tensor>() : *found;
  };
  const auto tokens = copy_of(kTokenTable), logits = copy_of(kLogitTable);
  if (!tokens && logits) tensors.emplace_back(kTokenTable, *logits);
  if (tokens && !logits) tensors.emplace_back(kLogitTable, *tokens);
  const auto are_equal = [&] {
    return tokens->dtype() == logits->dtype() && tokens->sizes() == logits->sizes() &&
           at::equal(*tokens, *logits);
  };
  if (!tokens || !logits || are_equal()) return;
  throw DataError(
      "{}: {} and {} differ: expected the same table of tokens, as in every CoCa of coca-pytorch",
      printable(path),
      kTokenTable,
      kLogitTable);
}

/// @throws DataError for an image encoder of another kind, or none
void check_encoder(const StateDict& tensors, const std::string& path) {
  const auto has = [&](const char* name, int64_t dimensions) {
    const at::Tensor* const found = find_tensor(tensors, name);
    return found != nullptr && found->dim() == dimensions;
  };
  if (has("img_encoder.vit.linear_head.weight", 2) &&
      has("img_encoder.vit.transformer.norm.weight", 1))
    return;
  const bool has_any = std::any_of(tensors.begin(), tensors.end(), [](const auto& item) {
    return item.first.starts_with("img_encoder.");
  });
  throw DataError(
      "{}: expected tensors of img_encoder.vit.*, a SimpleViT of vit-pytorch 1.4.1 or newer in an "
      "Extractor, got {}\n  {}",
      printable(path),
      has_any ? "another image encoder" : "no image encoder",
      kOtherCocaEncoders);
}

}  // namespace

CocaFile as_coca_file(RawClip raw,
                      const std::string& path,
                      const std::optional<CocaConfig>& config) {
  check_encoder(raw.tensors, path);
  const auto [arguments, where] = clip_arguments(config, kCoca, path);
  if (!arguments.img_encoder)
    throw ConfigError("{}: {}: img_encoder: {}", printable(path), where, kCocaNeedsEncoder);
  complete_tables(raw.tensors, path);
  check_arguments(expected_tensors(arguments), kCoca, where, raw.tensors, path);
  return {.config = arguments, .weights = std::move(raw.tensors), .merges = raw.merges()};
}

}  // namespace dalle2
