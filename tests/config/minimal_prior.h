// SPDX-License-Identifier: MIT
// The smallest config of a prior that trains.
#pragma once

#include "config/minimal_config.h"
#include "config/prior/prior_run_config.h"

namespace dalle2 {

inline const std::string kMinimalPrior = R"({
  "prior": {
    "net": {"dim": 8, "depth": 1},
    "image_embed_dim": 8,
    "condition_on_text_encodings": false
  },
  "data": {"image_url": "images", "text_url": "texts", "splits": {}, "batch_size": 4},
  "train": {},
  "tracker": {"log": {}, "save": {"save_to": "local", "save_latest_to": "latest.pth"}}
})";

/// Reads the smallest config of a prior with some values assigned (`/pointer=value`).
inline LoadedPriorConfig read_prior(const std::vector<std::string>& assignments,
                                    bool strict = false) {
  return parse_prior_config(
      kMinimalPrior, "prior.json", {.overrides = assignments, .strict = strict});
}

}  // namespace dalle2
