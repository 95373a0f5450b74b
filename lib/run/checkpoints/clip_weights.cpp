// SPDX-License-Identifier: MIT
#include "run/checkpoints/clip_weights.h"

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"
#include "checkpoint/clip/clip_file.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "io/files/atomic_file.h"
#include "io/text/clip_vocabulary.h"
#include "run/clip/clip_data.h"

namespace dalle2 {
namespace {

/// @throws ConfigError for a vocabulary of another size, DataError for weights that are not finite
LoadedClip frozen_clip(std::shared_ptr<ClipImpl> clip,
                       ClipTokenizer tokenizer,
                       const std::string& path) {
  for (const at::Tensor& parameter : clip->parameters()) parameter.requires_grad_(false);
  clip->eval();
  check_finite(*clip, path);
  check_vocabulary(tokenizer, clip->config());
  return {std::move(clip), std::make_shared<const ClipTokenizer>(std::move(tokenizer))};
}

/// What shapes do not tell is assumed where no config says it, so it is shown.
void log_network(const std::string& path, const ClipFile& file) {
  const ClipVisionConfig& vision = file.config.vision_cfg;
  log_info(
      "clip",
      "{}: {}: {} of width {}, pictures of {} pixels, {} and {} heads, {}, embeddings of {} values",
      printable(path),
      file.format,
      vision.is_resnet() ? "a ResNet" : "a ViT",
      vision.width,
      vision.image_size,
      vision.heads(),
      file.config.text_cfg.heads,
      file.config.quick_gelu ? "QuickGELU" : "GELU",
      file.config.embed_dim);
}

/// @throws DataError for a file without a vocabulary of its own, and of another size than OpenAI's
ClipTokenizer tokenizer_of(const ClipFile& file, const std::string& path) {
  if (file.merges) return ClipTokenizer(*file.merges, path);
  if (file.config.text_cfg.vocab_size != kClipVocabSize) {
    throw DataError(
        "{}: expected a text tower for OpenAI's vocabulary of {} tokens, or a vocabulary in the file, "
        "got a text tower for {} tokens and no vocabulary",
        printable(path),
        kClipVocabSize,
        file.config.text_cfg.vocab_size);
  }
  return read_clip_vocabulary(find_clip_vocabulary(std::nullopt, printable(path), path));
}

/// Of a file that no run wrote.
LoadedClip foreign_clip(const std::string& path) {
  const ClipFile file = read_clip_file(path);
  log_network(path, file);
  ClipTokenizer tokenizer = tokenizer_of(file, path);
  auto clip = std::make_shared<ClipImpl>(file.config);
  load_state_dict(*clip, file.weights, /*prefix=*/"", /*strict=*/true, path);
  return frozen_clip(std::move(clip), std::move(tokenizer), path);
}

/// Whether a run wrote the file. One that cannot be looked into is left to read_clip_file().
bool is_of_run(const std::string& path) {
  try {
    const Value outline = read_checkpoint_outline(path);
    const Cursor root(outline, path);
    return outline.is_dict() && root.has("model") && root.has("config");
  } catch (const DataError&) {
    return false;
  }
}

/// What a run wrote; none for another file. @throws DataError for a run's file that is damaged
std::optional<Value> checkpoint_of_run(const std::string& path) {
  if (!is_of_run(path)) return std::nullopt;
  return read_checkpoint(path);
}

/// @throws ConfigError if the folder has the config of another model, which `out` would replace
void check_config_beside(const ClipFile& file, const std::string& out) {
  const std::filesystem::path beside =
      std::filesystem::path(out).parent_path() / kOpenClipConfigName;
  if (!std::filesystem::exists(beside)) return;
  const ParsedJson there = parse_untrusted_json(read_file(beside.string()));
  if (there.is_right() && there.value == open_clip_config_of(file.config)) return;
  throw ConfigError(
      "OUT {}: its folder has the {} of another model\n  open_clip looks for the config by this "
      "name. Give the model a folder of its own.",
      printable(out),
      kOpenClipConfigName);
}

}  // namespace

LoadedClip load_clip(const ModelSource& source, const Value& checkpoint) {
  auto clip = load_clip_model(source, checkpoint);
  const Cursor root(checkpoint, source.checkpoint_path);
  const std::optional<Cursor> merges = root.find(kClipMergesKey);
  if (!merges) {
    throw DataError(
        "{}: no entry \"{}\": expected the vocabulary that this CLIP was trained with\n  Name a "
        "checkpoint.pth or model.pth of a run.",
        printable(source.checkpoint_path),
        kClipMergesKey);
  }
  return frozen_clip(
      std::move(clip), ClipTokenizer(merges->as_string(), merges->where()), source.checkpoint_path);
}

std::string clip_file_of(const std::string& model) {
  constexpr std::array kOpenAiNames = {"RN50",
                                       "RN101",
                                       "RN50x4",
                                       "RN50x16",
                                       "RN50x64",
                                       "ViT-B/32",
                                       "ViT-B/16",
                                       "ViT-L/14",
                                       "ViT-L/14@336px"};
  std::error_code ignored;
  if (std::filesystem::exists(model, ignored)) return model;
  if (std::find(kOpenAiNames.begin(), kOpenAiNames.end(), model) == kOpenAiNames.end())
    throw ConfigError("{}: no such file", printable(model));
  std::string name = model + ".pt";
  for (char& c : name) c = c == '/' || c == '@' ? '-' : c;
  const char* const home = std::getenv("HOME");
  const std::filesystem::path file =
      std::filesystem::path(home == nullptr ? "." : home) / ".cache" / "clip" / name;
  if (std::filesystem::exists(file, ignored)) return file.string();
  throw ConfigError(
      "{}: no such file, and OpenAI's model of this name is not at {}\n  Put it there "
      "(`clip.load` of their package does), or name the file of a CLIP.",
      printable(model),
      printable(file.string()));
}

LoadedClip load_clip_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw ConfigError("{}: no such file", printable(path));
  const std::optional<Value> checkpoint = checkpoint_of_run(path);
  return checkpoint ? load_clip({.checkpoint_path = path}, *checkpoint) : foreign_clip(path);
}

ConvertReport convert_to_open_clip(const std::string& in, const std::string& out) {
  is_safetensors_name(out);
  ClipFile file;
  if (const std::optional<Value> checkpoint = checkpoint_of_run(in)) {
    const LoadedClip own = load_clip({.checkpoint_path = in}, *checkpoint);
    file = {.config = own.clip->config(),
            .weights = state_dict(*own.clip),
            .merges = own.tokenizer->merges(),
            .format = ""};
  } else {
    file = read_clip_file(in);
  }
  check_config_beside(file, out);
  write_clip_file(out, file);
  return {.tensor_count = file.weights.size(), .replaced = {}};
}

}  // namespace dalle2
