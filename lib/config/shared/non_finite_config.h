// SPDX-License-Identifier: MIT
// `train.non_finite`: what becomes of a run whose losses or gradients are not finite.
#pragma once

#include <cstdint>

#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

struct NonFiniteConfig {
  static constexpr const char* kDoc =
      "What a run does about losses and gradients that are NaN or infinite. An update with one is "
      "always skipped and counted: weights, averages, optimizer and schedule stay as they are. "
      "These keys say what comes after too many of them.";

  NonFiniteAction action = NonFiniteAction::stop;
  int64_t after = 20;
  double lr_factor = 0.5;
  int64_t max_roll_backs = 3;

  void fields(auto& f) {
    D2_FIELD(action,
             "`stop` ends the run with exit code 4; `roll_back` goes back to the run's last "
             "checkpoint and trains on with a lower learning rate.");
    D2_FIELD(after,
             "How many updates of a network skipped in a row are too many.",
             within(1, most::kEpochs));
    D2_FIELD(
        lr_factor,
        "With `roll_back`: the learning rates of all networks are multiplied by it each time the "
        "run goes back; the checkpoints keep the product.",
        above(0).up_to(1));
    D2_FIELD(max_roll_backs,
             "With `roll_back`: how often a run goes back; the next time it stops.",
             within(1, most::kEpochs));
  }

  bool operator==(const NonFiniteConfig&) const = default;
};

}  // namespace dalle2
