// SPDX-License-Identifier: MIT
#include "checkpoint/clip/clip_file.h"

#include <fnmatch.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <unordered_set>

#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "checkpoint/archive/safetensors.h"
#include "checkpoint/archive/zip_archive.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/convert.h"
#include "checkpoint/pickle/pth.h"
#include "config/reading/writer.h"
#include "io/files/atomic_file.h"
#include "io/files/folder_names.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

/// JSON, and where it lies.
using FoundJson = std::optional<std::pair<std::string, Json>>;

/// @throws DataError unless it is JSON
FoundJson json_in(const std::string& where, const std::string& text) {
  ParsedJson json = parse_untrusted_json(text);
  if (!json.is_right()) throw DataError("{}: {}", where, json.fault);
  return std::pair(where, std::move(json.value));
}

/// The JSON in a file beside `path`, if there is one.
FoundJson json_beside(const std::string& path, const char* name) {
  const std::string file = (fs::path(path).parent_path() / name).string();
  return fs::is_regular_file(file) ? json_in(file, read_file(file)) : std::nullopt;
}

/// The JSON in the file that the caller names, if he names one.
FoundJson named_config(const ClipFileHints& hints) {
  const auto& path = hints.config_path;
  return path ? json_in(*path, read_file(*path)) : std::nullopt;
}

/// Lists in which state dicts lie, in the order in which they are looked for.
constexpr const char* kStateDictKeys[] = {"state_dict", "model"};

/// Tensors of the modules of a program, by their paths. A module that stands in several places counts
/// in the first: the paths through a shared graph are without number.
/// Recurses as deep as the modules are nested, which read_script_attributes() limits.
void collect_tensors(const Value& module,
                     const std::string& prefix,
                     std::unordered_set<const StubObject*>& seen,
                     StateDict& tensors) {
  const auto* stub = std::get_if<std::shared_ptr<StubObject>>(&module.data);
  if (stub == nullptr || !(*stub)->state.is_dict() || !seen.insert(stub->get()).second) return;
  for (const auto& [key, value] : (*stub)->state.as_dict().items) {
    if (!key.is_string()) continue;
    const std::string name = prefix + key.as_string();
    if (value.is_tensor()) tensors.emplace_back(name, value.as_tensor());
    collect_tensors(value, name + ".", seen, tensors);
  }
}

RawClip read_pickled(const std::string& path) {
  const Value root = read_pth(path);
  const Cursor cursor(root, path);
  RawClip raw;
  for (const char* key : {kClipConfigKey, kClipMergesKey}) {
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

RawClip read_tensors(const std::string& path) {
  bool is_program = false, is_torch = path.ends_with(".pth") || path.ends_with(".bin");
  {
    const MappedFile file(path);
    is_program = check_script_file(file);
    is_torch = is_torch || looks_like_zip(file) || path.ends_with(".pt");
  }
  if (is_program) {
    RawClip raw;
    raw.is_program = true;
    std::unordered_set<const StubObject*> seen;
    collect_tensors(read_script_attributes(path), "", seen, raw.tensors);
    return raw;
  }
  if (is_torch) return read_pickled(path);
  SafetensorsFile file = read_safetensors(path);
  return {.tensors = std::move(file.tensors), .texts = std::move(file.metadata)};
}

using Replacement = std::pair<std::string_view, std::string_view>;

constexpr const char* kParts[] = {".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj."};

constexpr std::string_view kNoWeights[] = {
    "input_resolution", "context_length", "vocab_size", "attn_mask"};

constexpr Replacement kBeginnings[] = {
    {"text_model.embeddings.token_embedding.", "token_embedding."},
    {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
    {"text_model.final_layer_norm.", "ln_final."},
    {"text_model.encoder.layers.", "transformer.resblocks."},
    {"text_projection.weight", "text_projection"},
    {"vision_model.embeddings.class_embedding", "visual.class_embedding"},
    {"vision_model.embeddings.patch_embedding.weight", "visual.conv1.weight"},
    {"vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"},
    {"vision_model.pre_layrnorm.", "visual.ln_pre."},
    {"vision_model.post_layernorm.", "visual.ln_post."},
    {"vision_model.encoder.layers.", "visual.transformer.resblocks."},
    {"visual_projection.weight", "visual.proj"}};

constexpr Replacement kInside[] = {{".layer_norm1.", ".ln_1."},
                                   {".layer_norm2.", ".ln_2."},
                                   {".mlp.fc1.", ".mlp.c_fc."},
                                   {".mlp.fc2.", ".mlp.c_proj."},
                                   {".self_attn.out_proj.", ".attn.out_proj."},
                                   {".self_attn.q_proj.", ".attn.in_proj_"}};

bool is_no_weight(const std::string& name) {
  return std::ranges::find(kNoWeights, name) != std::end(kNoWeights) ||
         name.ends_with("position_ids");
}

std::string renamed(std::string name) {
  for (const auto& [from, to] : kBeginnings)
    if (name.starts_with(from)) name = std::string(to) + name.substr(from.size());
  for (const auto& [from, to] : kInside)
    if (const size_t at = name.find(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  return name;
}

/// Queries, keys and values become one tensor, in the place of the queries.
StateDict from_hugging_face(const StateDict& tensors, const std::string& where) {
  StateDict result;
  for (const auto& [name, tensor] : tensors) {
    if (is_no_weight(name)) continue;
    at::Tensor value = tensor;
    const auto part = std::ranges::find_if(
        kParts, [&](const char* each) { return name.find(each) != std::string::npos; });
    if (part != std::end(kParts)) {
      std::vector<at::Tensor> parts;
      for (const char* const each : kParts) {
        const std::string other = replaced(name, *part, each);
        const at::Tensor* found = find_tensor(tensors, other);
        if (found == nullptr) throw DataError("{}: the tensor '{}' is missing", where, other);
        parts.push_back(*found);
        if (found->sizes() != parts.front().sizes() || found->dim() == 0)
          throw DataError("{}: '{}' is of another shape than '{}'", where, other, name);
      }
      if (part != std::begin(kParts)) continue;
      value = at::cat(parts);
    }
    if (name == "text_projection.weight" || name == "visual_projection.weight") {
      if (value.dim() != 2) throw DataError("{}: '{}' is not a matrix", where, name);
      value = value.t();
    }
    result.emplace_back(renamed(name), value);
  }
  return result;
}

/// Of a file without a config.
void apply_hints(const ClipFileHints& hints, const std::string& path, ClipNetworkConfig& config) {
  if (hints.quick_gelu) config.quick_gelu = *hints.quick_gelu;
  ClipVisionConfig& vision = config.vision_cfg;
  const int64_t width = vision.attention_width();
  if (width % (hints.heads ? hints.heads->front() : vision.head_width) != 0)
    throw ConfigError(
        "{}: heads: expected a divisor of {}, the width of the image tower, got {}\n  Put the config "
        "beside the file, name it (--clip-config), or, in a config, give \"heads\".",
        printable(path),
        width,
        hints.heads ? std::to_string(hints.heads->front()) : "none");
  if (!hints.heads) return;
  vision.head_width = width / hints.heads->front();
  config.text_cfg.heads = hints.heads->back();
}

ClipNetworkConfig config_of(const RawClip& raw,
                            const NamedClip& named,
                            const std::string& path,
                            const ClipFileHints& hints) {
  const bool is_hugging_face = named.is_hugging_face;
  const char* const name = is_hugging_face ? "config.json" : kOpenClipConfigName;
  FoundJson found = named_config(hints);
  if (const auto text = raw.texts.find(kClipConfigKey); !found && text != raw.texts.end())
    found = json_in(path + ": " + kClipConfigKey, text->second);
  if (!found && !raw.is_program) found = json_beside(path, name);
  if (found && (hints.quick_gelu || hints.heads)) {
    throw ConfigError(
        "{}: \"quick_gelu\" and \"heads\" are for a file without a config, and {} has "
        "them: leave them out",
        printable(path),
        printable(found->first));
  }
  if (found && !is_hugging_face) {
    const ClipNetworkConfig config = clip_config_of_open_clip(found->second, found->first);
    const char* const root = found->second.contains("model_cfg") ? ": /model_cfg" : ": ";
    check_shape(config, found->first + root, named.tensors, path);
    return config;
  }
  ClipNetworkConfig config = clip_shape_of(named.tensors, path);
  config.quick_gelu = raw.is_program || is_hugging_face;
  if (found) apply_hugging_face_config(found->second, found->first, config);
  if (!found) apply_hints(hints, path, config);
  config_in_file<ClipNetworkConfig>(to_json(config), path);  // can it be built?
  if (!found && !raw.is_program && !(hints.quick_gelu && hints.heads)) {
    log_warning(
        "clip",
        "{}: the weights do not say all that this CLIP computes, and no {} lies beside them: "
        "taken are {}, {} and {} heads, and open_clip's usual sizes and colours of pictures\n"
        "  Others give other embeddings: put the config there, name it (--clip-config), or, in a "
        "config, give \"quick_gelu\" and \"heads\".",
        printable(path),
        name,
        config.quick_gelu ? "QuickGELU" : "GELU",
        config.vision_cfg.heads(),
        config.text_cfg.heads);
  }
  return config;
}

XClipConfig arguments_of(const ClipFileHints& hints, const std::string& path) {
  if (hints.arguments) return *hints.arguments;
  auto found = named_config(hints);
  if (!found) found = json_beside(path, kXClipConfigName);
  if (!found) {
    throw ConfigError(
        "{}: a CLIP of x-clip, whose weights do not say all that it was made with\n  Put the "
        "arguments of its constructor into {} beside the file, e.g. {{\"text_heads\": 8}}, or name "
        "that file with --clip-config; in a config give them as \"base_model_kwargs\", with "
        "\"make\": \"{}\".",
        printable(path),
        kXClipConfigName,
        XClipConfig::kTag);
  }
  return config_in_file<XClipConfig>(found->second, printable(found->first));
}

/// A config; a part or the index of a model that Hugging Face's libraries divided:
/// "model-00001-of-00002.safetensors", "model.safetensors.index.json".
void refuse_config_or_part(const std::string& path) {
  const fs::path file = path;
  const std::string name = file.filename().string();
  if (file.extension() == ".json" && !name.ends_with(".index.json")) {
    throw DataError(
        "{}: expected the weights of a CLIP, got a config\n  Give the file of the weights beside it, such "
        "as open_clip_model.safetensors: the config is found there.",
        printable(path));
  }
  const bool is_index = name.ends_with(".index.json");
  const auto is_whole = [](const std::string& each) {
    return ::fnmatch("*-[0-9]*-of-0*", each.c_str(), 0) != 0 ||
           each.find("-of-00001.") != std::string::npos;
  };
  if (!is_index && is_whole(name)) return;
  std::vector<std::string> parts = names_in_folder(file.parent_path().string());
  std::erase_if(parts, is_whole);
  std::ranges::sort(parts);
  throw DataError(
      "{}: expected a whole CLIP, got {}: {}\n  Join them: in Python, "
      "`transformers.CLIPModel.from_pretrained(FOLDER).save_pretrained(OTHER, "
      "max_shard_size=\"99GB\")`.",
      printable(path),
      is_index ? "an index of parts" : "a part",
      short_list(parts));
}

}  // namespace

std::string clip_identity_in(const Cursor& root) {
  const auto identity = root.value().is_dict() ? root.find(kClipIdentityKey) : std::nullopt;
  return identity && identity->value().is_string() ? identity->as_string() : "";
}

std::optional<std::string> RawClip::merges() const {
  const auto found = texts.find(kClipMergesKey);
  return found == texts.end() ? std::optional<std::string>() : found->second;
}

RawClip read_raw_clip(const std::string& path) {
  refuse_config_or_part(path);
  RawClip raw = read_tensors(path);
  StateDict plain = strip_prefix(raw.tensors, "module.");
  if (plain.size() == raw.tensors.size()) raw.tensors = std::move(plain);
  return raw;
}

NamedClip open_clip_names(StateDict tensors, const std::string& where) {
  if (find_tensor(tensors, "text_model.embeddings.token_embedding.weight") != nullptr) {
    return {from_hugging_face(tensors, where), /*is_hugging_face=*/true};
  }
  const bool has_text_prefix = find_tensor(tensors, "text.token_embedding.weight") != nullptr;
  StateDict result;
  for (auto& [name, tensor] : tensors) {
    const bool strip = has_text_prefix && name.starts_with("text.");
    std::string plain = strip ? name.substr(std::string_view("text.").size()) : name;
    if (!is_no_weight(plain)) result.emplace_back(std::move(plain), std::move(tensor));
  }
  return {std::move(result), /*is_hugging_face=*/false};
}

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
  ClipFile clip;
  clip.config = config_of(raw, named, path, hints);
  clip.weights = std::move(named.tensors);
  clip.merges = raw.merges();
  clip.is_open_clip = !raw.is_program && !named.is_hugging_face;
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

bool is_x_clip(const StateDict& tensors) {
  return find_tensor(tensors, "text_transformer.token_emb.weight") != nullptr &&
         find_tensor(tensors, "visual_transformer.to_tokens.1.weight") != nullptr;
}

XClipFile as_x_clip_file(RawClip raw, const std::string& path, const ClipFileHints& hints) {
  if (hints.quick_gelu || hints.heads) {
    throw ConfigError(
        "{}: \"quick_gelu\" and \"heads\" have no effect on a CLIP of x-clip: leave them out\n  Its "
        "heads are arguments of its constructor, in {} beside the file or, with \"make\": \"{}\", in "
        "\"base_model_kwargs\".",
        printable(path),
        kXClipConfigName,
        XClipConfig::kTag);
  }
  const size_t left_out = std::erase_if(raw.tensors, [](const auto& item) {
    return item.first.starts_with("mlm.") || item.first.starts_with("visual_ssl.");
  });
  if (left_out > 0)
    log_info("clip",
             "{}: {} tensors of mlm.* or visual_ssl.* are left out, which only training needs",
             printable(path),
             left_out);
  return {.config = arguments_of(hints, path),
          .weights = std::move(raw.tensors),
          .merges = raw.merges()};
}

}  // namespace dalle2
