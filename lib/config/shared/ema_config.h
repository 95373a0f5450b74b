// SPDX-License-Identifier: MIT
// `train.ema`: which average of the weights a run keeps, and the options of the second kind.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "config/reading/count_limits.h"
#include "config/reading/reflect.h"
#include "config/reading/types.h"

namespace dalle2 {

struct EmaConfig {
  static constexpr const char* kDoc =
      "Kind of the averaged weights. `ema_pytorch` is the reference's, shaped by the keys `ema_*` "
      "beside this object; `diffusers` is EMAModel of diffusers, shaped by the keys in it, which "
      "averages at every step and saves `ema_diffusers` in place of `ema`.";

  EmaKind kind = EmaKind::ema_pytorch;
  double decay = 0.9999;
  double min_decay = 0.0;
  int64_t update_after_step = 0;
  bool use_ema_warmup = false;
  double inv_gamma = 1.0;
  double power = 2.0 / 3.0;
  bool foreach = false;
  bool offload = false;

  void fields(auto& f) {
    D2_FIELD(kind, "`ema_pytorch` or `diffusers`; the other keys are those of `diffusers`.");
    D2_FIELD(decay, "Largest decay, per step.", within(0, 1));
    D2_FIELD(min_decay, "Lowest decay, once averaging has begun.", within(0, 1));
    D2_FIELD(update_after_step,
             "Steps before averaging begins; until one step later the average is a copy.",
             within(0, most::kSteps));
    D2_FIELD(use_ema_warmup,
             "The decay rises as 1 - (1 + step / inv_gamma) ^ -power; else as (1 + step) / (10 + "
             "step).");
    D2_FIELD(inv_gamma, "Slows that warm-up down.", above(0));
    D2_FIELD(power,
             "Exponent of that warm-up: 2/3 for runs of a million steps and more, 3/4 for shorter "
             "ones.",
             above(0));
    D2_FIELD(foreach,
             "All tensors in one call, which is faster on a GPU; the same average up to rounding.");
    D2_FIELD(offload,
             "Keeps the average in host memory between steps (page-locked beside a GPU): less "
             "memory on the device, two more transfers a step.");
    f.check(decay >= min_decay,
            "decay",
            fmt::format("must not be below min_decay ({}), got {}", min_decay, decay));
  }

  bool operator==(const EmaConfig&) const = default;
};

}  // namespace dalle2
