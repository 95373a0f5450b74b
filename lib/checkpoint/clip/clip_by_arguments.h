// SPDX-License-Identifier: MIT
// Files of CLIPs whose weights do not say all that they were made with: the arguments of the
// constructor come from a config, or from a file beside the weights.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/untrusted_text.h"
#include "checkpoint/clip/config_in_file.h"
#include "checkpoint/clip/raw_clip.h"
#include "config/clip/clip_arguments.h"

namespace dalle2 {

/// The package that such a CLIP is of.
struct ClipMaker {
  const char* make;                  ///< in a config
  const char* name;                  ///< "a CLIP of x-clip"
  const char* config_name;           ///< of the file with the arguments
  const char* example;               ///< of arguments
  const char* constructor;           ///< "x-clip's CLIP(...)"
  const char* tensors;               ///< what its tensors are called, in words
  std::array<const char*, 2> signs;  ///< two of them, by which it is known
};

inline constexpr ClipMaker kXClip = {
    .make = XClipConfig::kTag,
    .name = "a CLIP of x-clip",
    .config_name = "x_clip_config.json",
    .example = "{\"text_heads\": 8}",
    .constructor = "x-clip's CLIP(...)",
    .tensors = "text_transformer.* and visual_transformer.*",
    .signs = {"text_transformer.token_emb.weight", "visual_transformer.to_tokens.1.weight"}};
inline constexpr ClipMaker kCoca = {
    .make = CocaConfig::kTag,
    .name = "a CoCa of coca-pytorch",
    .config_name = "coca_config.json",
    .example =
        "{\"dim\": 512, ..., \"max_text_len\": 256, \"img_encoder\": {\"image_size\": 256, ...}}",
    .constructor = "coca-pytorch's CoCa(...), of its adapter and of its image encoder",
    .tensors = "unimodal_layers.* and img_attn_pool.*",
    .signs = {"text_cls_token", "img_queries"}};

/// Whose tensors these are, by their names; null for those of others.
const ClipMaker* maker_of(const StateDict& tensors);

template <class Config>
struct ClipByArguments {
  Config config;
  StateDict weights;                  ///< the maker's names
  std::optional<std::string> merges;  ///< of a vocabulary of its own; none: OpenAI's
};

/// What arguments say of the tensors in a file.
struct ExpectedTensors {
  struct Shape {
    std::string tensor;
    std::vector<int64_t> sizes;
    const char* arguments;  ///< that the sizes follow from
  };
  /// Of a transformer, whose layer N has a tensor `list`.N.`tensor`.
  struct Layers {
    std::string list;
    const char* tensor;
    int64_t count;
    const char* argument;
  };
  std::vector<Shape> shapes;
  std::vector<Layers> layers;
};

/// Whether the weights are those of this network: before anything is allocated by a config.
/// @param config_where where of the arguments @throws DataError that lists what does not fit
void check_arguments(const ExpectedTensors& expected,
                     const ClipMaker& maker,
                     const std::string& config_where,
                     const StateDict& tensors,
                     const std::string& path);

/// @throws ConfigError that says where the arguments belong
[[noreturn]] void throw_without_arguments(const ClipMaker& maker, const std::string& path);

/// @return the arguments, and where they are from, for messages
/// @param given by a config; none: those in the maker's file beside `path`
/// @throws ConfigError if there is none, DataError for one that cannot be read
template <class Config>
std::pair<Config, std::string> clip_arguments(const std::optional<Config>& given,
                                              const ClipMaker& maker,
                                              const std::string& path) {
  if (given) return {*given, "base_model_kwargs"};
  const auto found = json_beside(path, maker.config_name);
  if (!found) throw_without_arguments(maker, path);
  const std::string where = printable(found->first);
  return {config_in_file<Config>(found->second, where), where};
}

}  // namespace dalle2
