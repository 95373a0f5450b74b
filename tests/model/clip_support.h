// SPDX-License-Identifier: MIT
// CLIPs of fixtures.
#pragma once

#include <memory>

#include "config/clip/clip_network_config.h"
#include "model/clip/clip.h"
#include "support/fixture.h"

namespace dalle2::test {

inline ClipNetworkConfig clip_config_of(const nlohmann::json& json) {
  ClipNetworkConfig config;
  const nlohmann::json &vision = json.at("vision_cfg"), &text = json.at("text_cfg");
  const nlohmann::json& layers = vision.at("layers");
  config.embed_dim = json.at("embed_dim");
  config.quick_gelu = json.at("quick_gelu");
  if (layers.is_array()) {
    config.vision_cfg.layers = layers.get<std::vector<int64_t>>();
  } else {
    config.vision_cfg.layers = layers.get<int64_t>();
    config.vision_cfg.patch_size = vision.at("patch_size");
    config.vision_cfg.mlp_ratio = vision.at("mlp_ratio");
  }
  config.vision_cfg.width = vision.at("width");
  config.vision_cfg.head_width = vision.at("head_width");
  config.vision_cfg.image_size = vision.at("image_size");
  config.text_cfg = {.context_length = text.at("context_length"),
                     .vocab_size = text.at("vocab_size"),
                     .width = text.at("width"),
                     .heads = text.at("heads"),
                     .layers = text.at("layers"),
                     .mlp_ratio = text.at("mlp_ratio")};
  return config;
}

/// A CLIP with the golden weights.
inline std::shared_ptr<ClipImpl> filled_clip(const ClipNetworkConfig& config) {
  auto clip = std::make_shared<ClipImpl>(config);
  fill_parameters(*clip);
  return clip;
}

}  // namespace dalle2::test
