// SPDX-License-Identifier: MIT
// What tests may know of a trainer's inside.
#pragma once

#include <memory>

#include "trainer/trainer.h"

namespace dalle2 {

struct TrainerProbe {
  static TrainerContents& contents(Trainer& trainer) { return trainer.contents_; }
  /// The averaged network of a part; null without averages or for a part that is not trained.
  static std::shared_ptr<torch::nn::Module> averaged_network(const Trainer& trainer,
                                                             int64_t number = 1) {
    if (!trainer.is_trained(number)) return nullptr;
    trainer.settle_all();
    const TrainedPart& part = trainer.part(number);
    return part.average ? part.average->network() : nullptr;
  }
  /// As on a GPU.
  static void settle_late(Trainer& trainer) { trainer.settles_at_once_ = false; }
};

}  // namespace dalle2
