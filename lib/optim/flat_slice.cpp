// SPDX-License-Identifier: MIT
#include "optim/flat_slice.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "optim/flat_parameters.h"

namespace dalle2 {

FlatSlice FlatSlice::overlap(const FlatSlice& other) const {
  const int64_t first = std::max(begin, other.begin);
  return {first, std::max(first, std::min(end, other.end))};
}

std::vector<FlatSlice> split_flat(int64_t numel, int64_t count) {
  const int64_t share = numel / kFlatRow / count * kFlatRow;
  std::vector<FlatSlice> slices;
  for (int64_t owner = 0; owner < count; ++owner) {
    slices.push_back({owner * share, (owner + 1) * share});
  }
  slices.back().end = numel;
  return slices;
}

void copy_into_slice(const at::Tensor& own,
                     const FlatSlice& slice,
                     int64_t offset,
                     const at::Tensor& tensor) {
  const FlatSlice common = slice.overlap({offset, offset + tensor.numel()});
  if (common.length() == 0) return;
  own.narrow(0, common.begin - slice.begin, common.length())
      .copy_(tensor.flatten().narrow(0, common.begin - offset, common.length()));
}

}  // namespace dalle2
