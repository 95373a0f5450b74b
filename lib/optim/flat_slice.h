// SPDX-License-Identifier: MIT
// Stretches of a flat buffer, for states that are spread over several owners.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dalle2 {

/// Elements begin ... end - 1 of a flat buffer.
struct FlatSlice {
  int64_t begin = 0, end = 0;

  int64_t length() const { return end - begin; }
  /// @param whole [n] @return [length] a view
  at::Tensor of(const at::Tensor& whole) const { return whole.narrow(0, begin, length()); }
  /// What both have; empty (and somewhere) if there is nothing.
  FlatSlice overlap(const FlatSlice& other) const;
};

/// The shares of `count` owners of `numel` elements, in order: equal and in multiples of kFlatRow,
/// but for the last, which has what is left over too.
std::vector<FlatSlice> split_flat(int64_t numel, int64_t count);

/// Copies the part of `tensor` that lies in a slice into what is kept of the slice.
/// @param own [slice.length()] @param offset of the tensor's first element in the whole buffer
void copy_into_slice(const at::Tensor& own,
                     const FlatSlice& slice,
                     int64_t offset,
                     const at::Tensor& tensor);

}  // namespace dalle2
