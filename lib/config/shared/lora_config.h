// SPDX-License-Identifier: MIT
// `train.lora`: training of low-rank adapters in place of the network itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

struct LoraConfig {
  static constexpr const char* kDoc =
      "Low-rank adapters (Hu et al. 2021): the network is frozen, and each layer that `targets` "
      "names learns a correction, alpha / rank * up(down(x)), which is zero at the start. With "
      "`tracker.load` it begins from the weights of a checkpoint without adapters.";

  int64_t rank = 0;
  std::optional<double> alpha;
  std::vector<std::string> targets = {"to_q", "to_kv", "to_out.0"};
  LoraInit init = LoraInit::gaussian;
  double dropout = 0.0;
  bool train_bias = false;

  void fields(auto& f) {
    D2_FIELD(rank,
             "Width of the adapters; 0 is off and trains the whole network.",
             within(0, most::kWidth));
    D2_FIELD(alpha, "Strength of the adapters, divided by `rank`; null for `rank`.", above(0));
    D2_FIELD(targets,
             "Layers that get an adapter: all whose names end in one of these. `to_q`, `to_kv` and "
             "`to_out.0` are the projections of the attentions, `to_qkv` that of the linear "
             "attention (`sparse_attn`); other linear layers may be named too.",
             not_empty());
    D2_FIELD(init,
             "How `down` is initialised: `gaussian` with the standard deviation 1 / rank, or "
             "`kaiming` (uniform). `up` starts at zero.");
    D2_FIELD(dropout,
             "Share of the adapters' inputs that is dropped while training.",
             at_least(0).below(1));
    D2_FIELD(train_bias, "Train all biases of the network, too.");
  }

  /// alpha, or its default; the adapters' product is scaled by strength() / rank.
  double strength() const { return alpha.value_or(static_cast<double>(rank)); }
};

}  // namespace dalle2
