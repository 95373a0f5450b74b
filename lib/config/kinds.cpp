// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/parse_config.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

static std::string input_of_decoder(const Json& config) {
  const Json::json_pointer flag("/decoder/unconditional");
  return config.contains(flag) && config.at(flag) == true ? "--num 16"
                                                          : "--image-embeds image_embeds.npy";
}

std::vector<ConfigKind>& config_kinds() {
  static std::vector<ConfigKind> kinds = {
      kind_row<TrainDecoderConfig, parse_decoder_config>("a decoder", input_of_decoder),
      kind_row<TrainPriorConfig, parse_prior_config>(
          "a prior", [](const Json&) { return "--text-embeds text_embeds.npy"; }),
      kind_row<TrainVaeConfig, parse_vae_config>("a VAE"),
      kind_row<TrainClipConfig, parse_clip_config>("a CLIP")};
  return kinds;
}

const ConfigKind& config_kind_of(const std::string& key) {
  for (const ConfigKind& kind : config_kinds()) {
    if (kind.key == key) return kind;
  }
  throw ConfigError("no kind \"{}\" of config; known are {}", key, available_kinds());
}

std::string available_kinds() {
  std::string keys;
  for (const ConfigKind& kind : config_kinds())
    keys += fmt::format("{}\"{}\"", keys.empty() ? "" : ", ", kind.key);
  return keys.replace(keys.rfind(", "), 1, " and");
}

std::vector<std::string> known_root_keys() {
  std::vector<std::string> all = {"$schema"};
  for (const ConfigKind& kind : config_kinds()) all.push_back(kind.key);
  return all;
}

void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings) {
  for (const ConfigKind& other : config_kinds()) {
    if (other.key == kind || !root.contains(other.key)) continue;
    findings.faults.error(
        "/" + other.key,
        fmt::format("has no place here: this needs the config of a {}, and a file trains one kind",
                    kind));
  }
}

/// " (did you mean "decoder" instead of "decodr"?)", if a key of `root` is nearly that of a kind.
static std::string near_kind(const Json& root) {
  for (const auto& [key, value] : root.items()) {
    if (const auto near = nearest_word(key, known_root_keys()); near && *near != key)
      return fmt::format(" (did you mean \"{}\" instead of {}?)", *near, shown(key));
  }
  return "";
}

/// Files of other programs that people bring, by a key that only they have.
struct OtherConfig {
  const char* pointer;
  const char* what;
  const char* advice;
};
constexpr const char* kDrawAdvice =
    "It trains nothing: it says how pictures are drawn. `dalle2-train sample --pipeline FILE --clip "
    "CLIP --text TEXT --out DIR` does that.";
constexpr const char* kInitAdvice =
    "Models of that program are not trained here. `dalle2-train init DATA` writes a first config for "
    "your pictures; configs/ has examples.";
constexpr const char* kClipAdvice =
    "It describes a model, not a training. `dalle2-train init DATA --kind clip` writes a config; put "
    "embed_dim, vision_cfg and text_cfg into its section \"clip\".";
constexpr OtherConfig kOtherConfigs[] = {
    {"/decoder/unet_sources", "a config of dalle2-laion", kDrawAdvice},
    {"/prior/load_model_from", "a config of dalle2-laion", kDrawAdvice},
    {"/model_cfg", "a model config of open_clip", kClipAdvice},
    {"/vision_cfg", "a model config of open_clip", kClipAdvice},
    {"/_class_name", "a model config of diffusers or muse", kInitAdvice},
    {"/_diffusers_version", "a model config of diffusers or muse", kInitAdvice},
    {"/architectures", "a model config of transformers", kInitAdvice},
    {"/model_type", "a model config of transformers", kInitAdvice},
    {"/pretrained_model_name_or_path",
     "a training config of kohya's or diffusers' scripts",
     kInitAdvice},
    {"/train_data_dir", "a training config of kohya's or diffusers' scripts", kInitAdvice},
    {"/network_module", "a training config of kohya's scripts", kInitAdvice},
    {"/datasets/0/subsets", "a data config of kohya's scripts", kInitAdvice},
    {"/train_micro_batch_size_per_gpu", "a config of DeepSpeed", kInitAdvice}};

void refuse_other_programs(const Json& root, const std::string& path) {
  const auto& kinds = config_kinds();
  const bool is_ours =
      std::ranges::any_of(kinds, [&](const ConfigKind& kind) { return root.contains(kind.key); });
  for (const auto& [pointer, what, advice] : kOtherConfigs) {
    const bool is_top = std::string_view(pointer).rfind('/') == 0;
    if (is_ours && is_top) continue;
    if (!root.contains(Json::json_pointer(pointer))) continue;
    throw ConfigError("{}: this is {} (it has {})\n  {}", path, what, pointer, advice);
  }
}

std::string config_kind(const std::string& path) {
  for (const char* other : {".toml", ".yaml", ".yml"}) {
    if (!path.ends_with(other)) continue;
    throw ConfigError("{}: expected a config in JSON, got a name that ends in {}\n  {}",
                      path,
                      other,
                      kInitAdvice);
  }
  Faults ignored;  // reading the whole config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  refuse_other_programs(root, path);
  const ConfigKind* found = nullptr;
  for (const ConfigKind& kind : config_kinds()) {
    if (!root.contains(kind.key)) continue;
    if (found != nullptr) {
      throw ConfigError("{}: has both \"{}\" and \"{}\"; a config trains one of them",
                        path,
                        found->key,
                        kind.key);
    }
    found = &kind;
  }
  if (found == nullptr) {
    throw ConfigError(
        "{}: has none of the root keys that say what is trained ({}){}; the examples in configs/ have one",
        path,
        available_kinds(),
        near_kind(root));
  }
  return found->key;
}

std::string config_schema(const std::string& kind) {
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", fmt::format("dalle2-train {} config", kind)},
      {"$comment",
       "Generated from lib/config. The strict form: the program also takes \"3\" and 8.0 for "
       "integers, \"1e-4\" for numbers, 0, 1, \"yes\" and \"no\" for booleans, and ignores unknown "
       "keys with a warning."}};
  schema.update(config_kind_of(kind).schema());
  schema["properties"]["$schema"] = Json{{"type", "string"}};
  return schema.dump(2) + "\n";
}

}  // namespace dalle2
