// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_file.h"

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/archive/script_file.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/clip/clip_names.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// In the metadata of safetensors, and beside the state dict of a .pt.
constexpr const char* kConfigKey = "clip_config";
constexpr const char* kHuggingFaceConfig = "config.json";
/// Lists in which state dicts lie, in the order in which they are looked for.
constexpr const char* kStateDictKeys[] = {"state_dict", "model"};

struct RawClip {
  StateDict tensors;
  std::map<std::string, std::string> texts;  // what else the file says
  bool is_program = false;
};

/// Tensors of the modules of a program, by their paths. A module that stands in several places counts
/// in the first: the paths through a shared graph are without number.
class ModuleTensors {
 public:
  /// Recurses as deep as the modules are nested, which read_script_attributes() limits.
  void collect(const Value& module, const std::string& prefix = "") {
    const auto* stub = std::get_if<std::shared_ptr<StubObject>>(&module.data);
    if (stub == nullptr || !(*stub)->state.is_dict() || !seen_.insert(stub->get()).second) return;
    for (const auto& [key, value] : (*stub)->state.as_dict().items) {
      if (!key.is_string()) continue;
      const std::string name = prefix + key.as_string();
      if (value.is_tensor()) tensors.emplace_back(name, value.as_tensor());
      collect(value, name + ".");
    }
  }

  StateDict tensors;

 private:
  std::unordered_set<const StubObject*> seen_;
};

RawClip read_pickled(const std::string& path) {
  const Value root = read_pth(path);
  const Cursor cursor(root, path);
  RawClip raw;
  for (const char* key : {kConfigKey, kClipMergesKey}) {
    if (const auto text = cursor.value().is_dict() ? cursor.find(key) : std::nullopt)
      raw.texts[key] = text->as_string();
  }
  for (const char* key : kStateDictKeys) {
    if (!cursor.value().is_dict() || !cursor.has(key)) continue;
    raw.tensors = cursor.at(key).as_state_dict();
    return raw;
  }
  raw.tensors = cursor.as_state_dict();
  return raw;
}

RawClip read_raw(const std::string& path) {
  bool is_program = false, is_torch = path.ends_with(".pth") || path.ends_with(".bin");
  {
    const MappedFile file(path);
    is_program = check_script_file(file);
    is_torch = is_torch || looks_like_zip(file) || path.ends_with(".pt");
  }
  if (is_program) {
    RawClip raw;
    raw.is_program = true;
    ModuleTensors modules;
    modules.collect(read_script_attributes(path));
    raw.tensors = std::move(modules.tensors);
    return raw;
  }
  if (is_torch) return read_pickled(path);
  SafetensorsFile file = read_safetensors(path);
  return {.tensors = std::move(file.tensors), .texts = std::move(file.metadata)};
}

Json parsed(const std::string& text, const std::string& where) {
  ParsedJson json = parse_untrusted_json(text);
  if (!json.is_right()) throw DataError("{}: {}", where, json.fault);
  return std::move(json.value);
}

/// The JSON in a file beside `path`, if there is one. @return its path and what is in it
std::optional<std::pair<std::string, Json>> beside(const std::string& path, const char* name) {
  const std::string file = (fs::path(path).parent_path() / name).string();
  if (!fs::is_regular_file(file)) return std::nullopt;
  return std::pair(file, parsed(read_file(file), file));
}

ClipNetworkConfig config_of(const RawClip& raw,
                            const NamedClip& named,
                            const std::string& path,
                            const ClipFileHints& hints) {
  const auto fitting = [&](const ClipNetworkConfig& config, const std::string& where) {
    check_shape(config, where, named.tensors, path);
    return config;
  };
  if (hints.config) return fitting(*hints.config, "the config of the caller");
  if (const auto text = raw.texts.find(kConfigKey); text != raw.texts.end()) {
    const std::string where = path + ": " + kConfigKey;
    return fitting(clip_config_of_open_clip(parsed(text->second, where), where), where);
  }
  const bool is_hugging_face = named.naming == ClipNaming::kHuggingFace;
  if (!is_hugging_face && !raw.is_program) {
    if (const auto found = beside(path, kOpenClipConfigName))
      return fitting(clip_config_of_open_clip(found->second, found->first), found->first);
  }
  ClipNetworkConfig config = clip_shape_of(named.tensors, path);
  config.quick_gelu = hints.quick_gelu.value_or(raw.is_program || is_hugging_face);
  if (is_hugging_face) {
    if (const auto found = beside(path, kHuggingFaceConfig))
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
  RawClip raw = read_raw(path);
  NamedClip named = open_clip_names(std::move(raw.tensors), path);
  check_weights(named.tensors, path);
  ClipFile clip;
  clip.config = config_of(raw, named, path, hints);
  clip.weights = std::move(named.tensors);
  if (const auto merges = raw.texts.find(kClipMergesKey); merges != raw.texts.end())
    clip.merges = merges->second;
  clip.format = raw.is_program                             ? "a TorchScript archive of OpenAI"
                : named.naming == ClipNaming::kHuggingFace ? "a CLIPModel of Hugging Face"
                                                           : "a state dict of open_clip";
  return clip;
}

void write_clip_file(const std::string& path, const ClipFile& clip) {
  const std::string config = open_clip_config_of(clip.config).dump(2);
  if (is_safetensors_name(path)) {
    std::map<std::string, std::string> metadata = {{"format", "pt"}, {kConfigKey, config}};
    if (clip.merges) metadata[kClipMergesKey] = *clip.merges;
    write_safetensors(path, clip.weights, metadata);
  } else {
    Dict root;
    root.set("state_dict", to_dict(clip.weights));
    root.set(kConfigKey, config);
    if (clip.merges) root.set(kClipMergesKey, *clip.merges);
    write_pth(path, root);
  }
  write_file_atomically((fs::path(path).parent_path() / kOpenClipConfigName).string(),
                        config + "\n");
}

}  // namespace dalle2
