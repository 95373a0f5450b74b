// SPDX-License-Identifier: MIT
#include "dist/all_gather_rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr size_t kMostDims = 8;

/// {dimensions, sizes...} of what a rank has.
std::vector<int64_t> shape_of(const at::Tensor& own) {
  std::vector<int64_t> shape(kMostDims + 1, 0);
  if (!own.defined()) return shape;
  D2_CHECK(own.dim() > 0 && own.dim() <= static_cast<int64_t>(kMostDims),
           "rows of {} dimensions",
           own.dim());
  shape[0] = own.dim();
  std::copy(own.sizes().begin(), own.sizes().end(), shape.begin() + 1);
  return shape;
}

}  // namespace

GatheredRows all_gather_rows(ProcessGroup& group, const at::Tensor& own, const std::string& what) {
  if (group.is_alone()) return {own, 0};
  const auto shapes = group.exchange(shape_of(own), what);
  std::vector<int64_t> sizes;  // of one row, behind the number of rows
  int64_t most = 0;
  for (const auto& shape : shapes) {
    if (shape[0] > 0) sizes.assign(shape.begin() + 1, shape.begin() + 1 + shape[0]);
    most = std::max(most, shape[1]);
  }
  if (most == 0) return {};
  // A collective takes as much of every rank: the rest is filled up.
  sizes[0] = most;
  const at::TensorOptions options = at::TensorOptions(group.device()).dtype(at::kFloat);
  const at::Tensor part = at::zeros(sizes, options);
  if (own.defined()) part.narrow(0, 0, own.size(0)).copy_(own);
  sizes[0] = most * group.size();
  const at::Tensor whole = at::zeros(sizes, options);
  group.all_gather(whole.view({-1}), part.view({-1}), what);
  std::vector<at::Tensor> pieces;
  int64_t begin = 0;
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    const int64_t count = shapes[rank][1];
    if (static_cast<int>(rank) < group.rank()) begin += count;
    pieces.push_back(whole.narrow(0, static_cast<int64_t>(rank) * most, count));
  }
  return {at::cat(pieces), begin};
}

}  // namespace dalle2
