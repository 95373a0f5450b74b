// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_file.h"

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <utility>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/clip/clip_names.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/clip/x_clip_file.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHuggingFaceConfig = "config.json";

ClipNetworkConfig config_of(const RawClip& raw,
                            const NamedClip& named,
                            const std::string& path,
                            const ClipFileHints& hints) {
  const auto fitting = [&](const ClipNetworkConfig& config, const std::string& where) {
    check_shape(config, where, named.tensors, path);
    return config;
  };
  if (hints.config) return fitting(*hints.config, "the config of the caller");
  if (const auto text = raw.texts.find(kClipConfigKey); text != raw.texts.end()) {
    const std::string where = path + ": " + kClipConfigKey;
    return fitting(clip_config_of_open_clip(json_in_file(text->second, where), where), where);
  }
  const bool is_hugging_face = named.naming == ClipNaming::kHuggingFace;
  if (!is_hugging_face && !raw.is_program) {
    if (const auto found = json_beside(path, kOpenClipConfigName))
      return fitting(clip_config_of_open_clip(found->second, found->first), found->first);
  }
  ClipNetworkConfig config = clip_shape_of(named.tensors, path);
  config.quick_gelu = hints.quick_gelu.value_or(raw.is_program || is_hugging_face);
  if (is_hugging_face) {
    if (const auto found = json_beside(path, kHuggingFaceConfig))
      apply_hugging_face_config(found->second, found->first, config);
  }
  check_clip_config(config, path);
  return config;
}

void check_weights(const StateDict& tensors, const std::string& path) {
  for (const auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point() && !at::isfinite(tensor).all().item<bool>()) {
      throw DataError("{}: '{}': the weights are not finite", path, name);
    }
  }
}

}  // namespace

ClipFile read_clip_file(const std::string& path, const ClipFileHints& hints) {
  return as_clip_file(read_raw_clip(path), path, hints);
}

ClipFile as_clip_file(RawClip raw, const std::string& path, const ClipFileHints& hints) {
  if (is_x_clip(raw.tensors)) {
    throw DataError(
        "{}: a CLIP of x-clip: expected a CLIP of OpenAI, open_clip or Hugging Face, which have "
        "other networks",
        path);
  }
  NamedClip named = open_clip_names(std::move(raw.tensors), path);
  check_weights(named.tensors, path);
  ClipFile clip;
  clip.config = config_of(raw, named, path, hints);
  clip.weights = std::move(named.tensors);
  clip.merges = raw.merges();
  clip.format = raw.is_program                             ? "a TorchScript archive of OpenAI"
                : named.naming == ClipNaming::kHuggingFace ? "a CLIPModel of Hugging Face"
                                                           : "a state dict of open_clip";
  return clip;
}

void write_clip_file(const std::string& path, const ClipFile& clip) {
  const std::string config = open_clip_config_of(clip.config).dump(2);
  if (is_safetensors_name(path)) {
    std::map<std::string, std::string> metadata = {{"format", "pt"}, {kClipConfigKey, config}};
    if (clip.merges) metadata[kClipMergesKey] = *clip.merges;
    write_safetensors(path, clip.weights, metadata);
  } else {
    Dict root;
    root.set("state_dict", to_dict(clip.weights));
    root.set(kClipConfigKey, config);
    if (clip.merges) root.set(kClipMergesKey, *clip.merges);
    write_pth(path, root);
  }
  write_file_atomically((fs::path(path).parent_path() / kOpenClipConfigName).string(),
                        config + "\n");
}

}  // namespace dalle2
