// SPDX-License-Identifier: MIT
// What tests may know of a trainer's inside.
#pragma once

#include <torch/ordered_dict.h>

#include "trainer/trainer.h"

namespace dalle2 {

struct TrainerProbe {
  static TrainerContents& contents(Trainer& trainer) { return trainer.contents_; }
  /// The averaged parameters of a part's network, by name; none without averages or for a part that is not
  /// trained.
  static torch::OrderedDict<std::string, at::Tensor> averaged(const Trainer& trainer,
                                                              int64_t number = 1) {
    torch::OrderedDict<std::string, at::Tensor> found;
    if (!trainer.is_trained(number) || !trainer.uses_ema()) return found;
    trainer.settle_all();
    const TrainedPart& part = trainer.part(number);
    const WeightAverage::InPlace in_place(*part.average);
    for (const auto& item : part.plan.network->named_parameters())
      found.insert(item.key(), item.value().detach());
    return found;
  }
  /// For the steps that follow, in the place of the config's.
  static void set_max_batch_size(Trainer& trainer, std::optional<int64_t> size) {
    for (const auto& part : trainer.contents_.parts) {
      if (part) part->settings.max_batch_size = size;
    }
  }
  /// As on a GPU.
  static void settle_late(Trainer& trainer) { trainer.settles_at_once_ = false; }
};

}  // namespace dalle2
