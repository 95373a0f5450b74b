// SPDX-License-Identifier: MIT
#include "checkpoint/clip/x_clip_file.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

/// Networks that help to train a CLIP, and no part of it.
constexpr std::array kTrainingPrefixes = {"mlm.", "visual_ssl."};

bool is_of_training(const std::string& name) {
  return std::any_of(kTrainingPrefixes.begin(), kTrainingPrefixes.end(), [&](const char* prefix) {
    return name.starts_with(prefix);
  });
}

ExpectedTensors expected_tensors(const XClipConfig& config) {
  const int64_t text = config.dim_text, image = config.dim_image, latent = config.dim_latent;
  const int64_t patch_values =
      config.channels * config.visual_patch_size * config.visual_patch_size;
  const std::string text_layers = "text_transformer.transformer.layers";
  const std::string image_layers = "visual_transformer.transformer.layers";
  constexpr const char* kQkv = ".0.0.fn.to_qkv.weight";
  ExpectedTensors expected;
  expected.shapes = {
      {kXClip.signs[0], {config.token_rows(), text}, "num_text_tokens, use_mlm, dim_text"},
      {text_layers + kQkv,
       {3 * config.text_heads * config.text_dim_head, text},
       "text_heads, text_dim_head, dim_text"},
      {kXClip.signs[1], {image, patch_values}, "dim_image, visual_patch_size"},
      {"visual_transformer.pos_emb.weight",
       {config.num_patches(), image},
       "visual_image_size, visual_patch_size, dim_image"},
      {image_layers + kQkv,
       {3 * config.visual_heads * config.visual_dim_head, image},
       "visual_heads, visual_dim_head, dim_image"},
      {"to_text_latent.weight", {latent, text}, "dim_latent, dim_text"},
      {"to_visual_latent.weight", {latent, image}, "dim_latent, dim_image"}};
  if (config.text_rotary_pos_emb) {
    expected.shapes.push_back({"text_transformer.rotary_pos_emb.inv_freq",
                               {config.rotary_dim() / 2},
                               "text_rotary_pos_emb, text_dim_head"});
  } else {
    expected.shapes.push_back({"text_transformer.abs_pos_emb.weight",
                               {config.text_seq_len, text},
                               "text_rotary_pos_emb, text_seq_len, dim_text"});
  }
  expected.layers = {{text_layers, "0.norm.g", config.text_enc_depth, "text_enc_depth"},
                     {image_layers, "0.norm.g", config.visual_enc_depth, "visual_enc_depth"}};
  return expected;
}

void leave_out_training(StateDict& tensors, const std::string& path) {
  const size_t left_out =
      std::erase_if(tensors, [](const auto& item) { return is_of_training(item.first); });
  if (left_out == 0) return;
  log_info("clip",
           "{}: {} are left out, which only the training of this CLIP needs",
           printable(path),
           counted(static_cast<int64_t>(left_out),
                   "tensor of mlm.* or visual_ssl.*",
                   "tensors of mlm.* or visual_ssl.*"));
}

}  // namespace

XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config) {
  const auto [arguments, where] = clip_arguments(config, kXClip, path);
  leave_out_training(raw.tensors, path);
  check_arguments(expected_tensors(arguments), kXClip, where, raw.tensors, path);
  return {.config = arguments, .weights = std::move(raw.tensors), .merges = raw.merges()};
}

}  // namespace dalle2
