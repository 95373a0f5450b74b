// SPDX-License-Identifier: MIT
#include "checkpoint/clip/x_clip_file.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
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
constexpr const char* kPatchWeight = "visual_transformer.to_tokens.1.weight";

/// What arguments say of the tensors in a file.
struct ExpectedTensors {
  struct Shape {
    std::string tensor;
    std::vector<int64_t> sizes;
    const char* arguments;  ///< that the sizes follow from
  };
  /// Of a transformer, whose layer N has a tensor `list`.N.0.norm.g.
  struct Layers {
    std::string list;
    int64_t count;
    const char* argument;
  };
  std::vector<Shape> shapes;
  std::vector<Layers> layers;
};

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
      {kTokenTable, {config.token_rows(), text}, "num_text_tokens, use_mlm, dim_text"},
      {text_layers + kQkv,
       {3 * config.text_heads * config.text_dim_head, text},
       "text_heads, text_dim_head, dim_text"},
      {kPatchWeight, {image, patch_values}, "dim_image, visual_patch_size"},
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
  expected.layers = {{text_layers, config.text_enc_depth, "text_enc_depth"},
                     {image_layers, config.visual_enc_depth, "visual_enc_depth"}};
  return expected;
}

int64_t layers_in(const StateDict& tensors, const std::string& list) {
  int64_t layers = 0;
  while (find_tensor(tensors, fmt::format("{}.{}.0.norm.g", list, layers)) != nullptr) ++layers;
  return layers;
}

/// Whether the weights are those of this network: before anything is allocated by a config.
/// @param config_where where of the arguments @throws DataError that lists what does not fit
void check_arguments(const XClipConfig& config,
                     const std::string& config_where,
                     const StateDict& tensors,
                     const std::string& path) {
  const ExpectedTensors expected = expected_tensors(config);
  std::vector<std::string> faults;
  for (const ExpectedTensors::Shape& each : expected.shapes) {
    const at::Tensor* const found = find_tensor(tensors, each.tensor);
    if (found != nullptr && found->sizes() == each.sizes) continue;
    faults.push_back(fmt::format("{}: expected {} (by {}), got {}",
                                 each.tensor,
                                 shape_text(each.sizes),
                                 each.arguments,
                                 found == nullptr ? "none" : shape_text(found->sizes())));
  }
  for (const ExpectedTensors::Layers& each : expected.layers) {
    const int64_t found = layers_in(tensors, each.list);
    if (found == each.count) continue;
    faults.push_back(fmt::format(
        "{}: expected {} layers (by {}), got {}", each.list, each.count, each.argument, found));
  }
  if (faults.empty()) return;
  throw DataError(
      "{}: these weights are of another CLIP than {} describes:{}\n  Give there the arguments of "
      "x-clip's CLIP(...).",
      printable(path),
      config_where,
      indented_list(faults));
}

/// @return the arguments, and where they are from, for messages
std::pair<XClipConfig, std::string> arguments_of(const std::optional<XClipConfig>& given,
                                                 const std::string& path) {
  if (given) return {*given, "base_model_kwargs"};
  const auto found = json_beside(path, kXClipConfigName);
  if (!found) {
    throw ConfigError(
        "{}: a CLIP of x-clip, whose weights do not say all that it was made with\n  Put the "
        "arguments of its constructor into {} beside the file, e.g. {{\"text_heads\": 8}}; in a "
        "config give them as \"base_model_kwargs\", with \"make\": \"{}\".",
        printable(path),
        kXClipConfigName,
        XClipConfig::kTag);
  }
  const std::string where = printable(found->first);
  return {config_in_file<XClipConfig>(found->second, where), where};
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
         find_tensor(tensors, kPatchWeight) != nullptr;
}

XClipFile as_x_clip_file(RawClip raw,
                         const std::string& path,
                         const std::optional<XClipConfig>& config) {
  const auto [arguments, where] = arguments_of(config, path);
  leave_out_training(raw.tensors, path);
  check_arguments(arguments, where, raw.tensors, path);
  return {.config = arguments, .weights = std::move(raw.tensors), .merges = raw.merges()};
}

}  // namespace dalle2
