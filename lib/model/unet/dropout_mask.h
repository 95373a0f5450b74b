// SPDX-License-Identifier: MIT
// Dropout by address: a mask depends on the seed, the place in the network and the sample alone. A
// pass that is computed again, or in other chunks, has the same one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// The masks that a pass uses.
struct DropoutSeed {
  uint64_t seed = 0;
  int64_t first_sample = 0;  ///< number of the pass' first sample in its batch
  /// [2] int64 on the device of the masks: both numbers, for a pass that is recorded. Undefined: those above are used.
  at::Tensor on_device = {};
};

/// Zero with probability `drop`, else 1 / (1 - drop): what `x` is multiplied by.
/// @param x [B, ...]; @param number of the place in the network @return like x, contiguous
at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number);

}  // namespace dalle2
