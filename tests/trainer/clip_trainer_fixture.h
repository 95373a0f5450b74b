// SPDX-License-Identifier: MIT
// The smallest CLIP that the tests of training take.
#pragma once

#include "config/clip/clip_network_config.h"

namespace dalle2::test {

inline ClipNetworkConfig tiny_clip() {
  ClipNetworkConfig config;
  config.embed_dim = 8;
  config.vision_cfg.layers = int64_t{1};
  config.vision_cfg.width = 16;
  config.vision_cfg.head_width = 8;
  config.vision_cfg.patch_size = 4;
  config.vision_cfg.image_size = 8;
  config.text_cfg.context_length = 6;
  config.text_cfg.vocab_size = 520;
  config.text_cfg.width = 16;
  config.text_cfg.heads = 2;
  config.text_cfg.layers = 1;
  return config;
}

}  // namespace dalle2::test
