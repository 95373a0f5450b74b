// SPDX-License-Identifier: MIT
// What an update does with flat buffers, in one pass over memory: on the CPU the memory limits it. Other devices use ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/loops.h"

namespace dalle2 {

/// Stretches of flat buffers on the CPU. [n] float32 each, n a multiple of kUpdateLanes, aligned to as many floats
struct AdamStretch {
  at::Tensor weights, grads, exp_avg, exp_avg_sq;
  at::Tensor average;  ///< takes in the new weights; undefined: there is none
  at::Tensor halves;   ///< [n] bfloat16: the new weights; undefined: they are not wanted
};

/// Any cut at a multiple of these gives the same bits.
inline constexpr int64_t kUpdateLanes = 16;

/// Makes the update in place.
void adam_update_(const loops::AdamStep& step, const AdamStretch& stretch);

/// to.copy_(from), past the caches if that is possible: what is written is not read soon. @param from [...] bfloat16
/// @param to [...] float32
void copy_from_half_(const at::Tensor& to, const at::Tensor& from);

}  // namespace dalle2
