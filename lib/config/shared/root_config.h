// SPDX-License-Identifier: MIT
// What the file of every kind of run has beside the sections of its kind.
#pragma once

#include <cstdint>

#include "config/shared/tracker_config.h"

namespace dalle2 {

struct RootConfig {
  TrackerConfig tracker;
  int64_t seed = 0;

  void fields(auto& f, const char* seed_doc = "Seed of everything random.") {
    D2_REQUIRED(tracker, "Logs and checkpoints.");
    D2_FIELD(seed, seed_doc, at_least(0));
  }
};

}  // namespace dalle2
