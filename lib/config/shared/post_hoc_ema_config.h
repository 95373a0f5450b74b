// SPDX-License-Identifier: MIT
// `train.post_hoc_ema`: averages whose length is chosen after training.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"

namespace dalle2 {

struct PostHocEmaConfig {
  static constexpr const char* kDoc =
      "Two more averages of the weights, saved now and then, of which `dalle2-train ema --sigma S` "
      "makes the average of any length afterwards (Karras et al. 2024, arXiv 2312.02696).";

  std::optional<int64_t> save_every_n_steps;
  std::vector<double> sigmas = {0.05, 0.1};

  void fields(auto& f) {
    D2_FIELD(save_every_n_steps,
             "Steps between two savings in `data_path/averages`; null is off. The last step is "
             "saved, too. Each file has two copies of the weights.",
             within(1, most::kSteps));
    D2_FIELD(sigmas,
             "Widths of the two averages, as standard deviations in parts of the training so far. "
             "Averages between and near them can be made.",
             above(0).up_to(0.288).entries(2));
  }

  bool operator==(const PostHocEmaConfig&) const = default;
};

}  // namespace dalle2
