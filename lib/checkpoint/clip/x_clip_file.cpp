// SPDX-License-Identifier: MIT
#include "checkpoint/clip/x_clip_file.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/clip/config_in_file.h"

namespace dalle2 {
namespace {

constexpr const char* kTokenTable = "text_transformer.token_emb.weight";
constexpr const char* kPatchLayer = "visual_transformer.to_tokens.1.weight";
/// Networks that help to train a CLIP, and no part of it.
constexpr std::array kTrainingPrefixes = {"mlm.", "visual_ssl."};

bool is_of_training(const std::string& name) {
  return std::any_of(kTrainingPrefixes.begin(), kTrainingPrefixes.end(), [&](const char* prefix) {
    return name.starts_with(prefix);
  });
}

/// A tensor that tells of the arguments.
struct Expected {
  std::string name;
  std::vector<int64_t> shape;
  const char* arguments;  ///< that the shape follows from
};

std::vector<Expected> expected_tensors(const XClipConfig& config) {
  const int64_t text = config.dim_text, image = config.dim_image, latent = config.dim_latent;
  const int64_t patch_values =
      config.channels * config.visual_patch_size * config.visual_patch_size;
  const auto qkv = [](const char* tower) {
    return fmt::format("{}.transformer.layers.0.0.fn.to_qkv.weight", tower);
  };
  std::vector<Expected> expected = {
      {kTokenTable, {config.token_rows(), text}, "num_text_tokens, use_mlm, dim_text"},
      {qkv("text_transformer"),
       {3 * config.text_heads * config.text_dim_head, text},
       "text_heads, text_dim_head, dim_text"},
      {kPatchLayer, {image, patch_values}, "dim_image, visual_patch_size"},
      {"visual_transformer.pos_emb.weight",
       {config.num_patches(), image},
       "visual_image_size, visual_patch_size, dim_image"},
      {qkv("visual_transformer"),
       {3 * config.visual_heads * config.visual_dim_head, image},
       "visual_heads, visual_dim_head, dim_image"},
      {"to_text_latent.weight", {latent, text}, "dim_latent, dim_text"},
      {"to_visual_latent.weight", {latent, image}, "dim_latent, dim_image"}};
  if (config.text_rotary_pos_emb) {
    expected.push_back({"text_transformer.rotary_pos_emb.inv_freq",
                        {config.rotary_dim() / 2},
                        "text_rotary_pos_emb, text_dim_head"});
  } else {
    expected.push_back({"text_transformer.abs_pos_emb.weight",
                        {config.text_seq_len, text},
                        "text_rotary_pos_emb, text_seq_len, dim_text"});
  }
  return expected;
}

/// Layers of the transformer of a tower.
int64_t layers_of(const StateDict& tensors, const std::string& tower) {
  int64_t layers = 0;
  while (find_tensor(tensors, fmt::format("{}.transformer.layers.{}.0.norm.g", tower, layers)) !=
         nullptr)
    ++layers;
  return layers;
}

/// Whether the weights are those of this network: before anything is allocated by a config.
/// @param config_where where of the config, for messages
void check_arguments(const XClipConfig& config,
                     const std::string& config_where,
                     const StateDict& tensors,
                     const std::string& path) {
  std::vector<std::string> faults;
  for (const Expected& each : expected_tensors(config)) {
    const at::Tensor* const found = find_tensor(tensors, each.name);
    if (found != nullptr && found->sizes() == each.shape) continue;
    faults.push_back(fmt::format("{}: expected {} (by {}), got {}",
                                 each.name,
                                 shape_text(each.shape),
                                 each.arguments,
                                 found == nullptr ? "none" : shape_text(found->sizes())));
  }
  const auto check_layers = [&](const char* tower, const char* argument, int64_t layers) {
    const int64_t found = layers_of(tensors, tower);
    if (found == layers) return;
    faults.push_back(fmt::format(
        "{}.transformer: expected {} layers (by {}), got {}", tower, layers, argument, found));
  };
  check_layers("text_transformer", "text_enc_depth", config.text_enc_depth);
  check_layers("visual_transformer", "visual_enc_depth", config.visual_enc_depth);
  if (faults.empty()) return;
  throw DataError(
      "{}: these weights are of another CLIP than {} describes:{}\n  Give there the arguments that "
      "x-clip's CLIP(...) was made with.",
      printable(path),
      config_where,
      indented_list(faults));
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

bool is_x_clip(const StateDict& tensors) {
  return find_tensor(tensors, kTokenTable) != nullptr &&
         find_tensor(tensors, kPatchLayer) != nullptr;
}

XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config) {
  XClipFile file;
  std::string config_where = "base_model_kwargs";
  if (config) {
    file.config = *config;
  } else if (const auto found = json_beside(path, kXClipConfigName)) {
    config_where = printable(found->first);
    file.config = config_in_file<XClipConfig>(found->second, config_where);
  } else {
    throw ConfigError(
        "{}: a CLIP of x-clip, whose weights do not say all that it was made with\n  Put the "
        "arguments of its constructor into {} beside the file, e.g. {{\"text_heads\": 8}}; in a "
        "config give them as \"base_model_kwargs\", with \"make\": \"x-clip\".",
        printable(path),
        kXClipConfigName);
  }
  leave_out_training(raw.tensors, path);
  check_arguments(file.config, config_where, raw.tensors, path);
  file.weights = std::move(raw.tensors);
  if (const auto merges = raw.texts.find(kClipMergesKey); merges != raw.texts.end())
    file.merges = merges->second;
  return file;
}

}  // namespace dalle2
