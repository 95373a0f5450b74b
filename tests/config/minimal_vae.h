// SPDX-License-Identifier: MIT
// The smallest config of a VAE that trains.
#pragma once

#include "config/minimal_config.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

inline const std::string kMinimalVae = R"({
  "vae": {"dim": 16},
  "data": {"folder": "pictures", "image_size": 64, "batch_size": 4},
  "train": {"num_train_steps": 10, "vgg_path": "vgg.pt"},
  "tracker": {"log": {}, "save": {"save_to": "local", "save_latest_to": "latest.pth"}}
})";

/// Reads the smallest config of a VAE with some values assigned (`/pointer=value`).
inline LoadedVaeConfig read_vae(const std::vector<std::string>& assignments) {
  return parse_vae_config(kMinimalVae, "vae.json", {.overrides = assignments});
}

}  // namespace dalle2
