// SPDX-License-Identifier: MIT
// Entries of a schedule at the times of a batch, for images and vectors alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace dalle2 {

/// A buffer's entry at each sample's time, ready to multiply `like`.
/// @param buffer [T]; t [B] int64; like [B, ...] @return [B, 1, ...], as many dimensions as `like`
inline at::Tensor at_times(const at::Tensor& buffer, const at::Tensor& t, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[0] = t.size(0);
  return buffer.gather(0, t).view(shape);
}

}  // namespace dalle2
