// SPDX-License-Identifier: MIT
// What tests may know of a trainer's inside.
#pragma once

#include "trainer/trainer.h"

namespace dalle2 {

struct TrainerProbe {
  static TrainerContents& contents(Trainer& trainer) { return trainer.contents_; }
  /// As on a GPU.
  static void settle_late(Trainer& trainer) { trainer.settles_at_once_ = false; }
};

}  // namespace dalle2
