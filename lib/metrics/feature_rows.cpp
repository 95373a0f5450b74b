// SPDX-License-Identifier: MIT
#include "metrics/feature_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "dist/gather_rows.h"

namespace dalle2 {

void FeatureRows::add(const at::Tensor& index, const at::Tensor& features) {
  D2_CHECK(features.dim() == 2 && index.numel() == features.size(0), "a row a number");
  D2_CHECK(parts_.empty() || parts_.front().size(1) == features.size(1), "rows of one width");
  if (index.numel() == 0) return;
  at::Tensor rows = features.to(at::kCPU, at::kFloat).contiguous();
  // Later changes by the caller do not reach what is kept.
  if (rows.is_same(features)) rows = rows.clone();
  indices_.push_back(index.to(at::kCPU, at::kLong).clone());
  parts_.push_back(std::move(rows));
  settled_ = false;
}

/// One matrix, in order. Each part goes as soon as its rows are in it: the features of an evaluation
/// are large.
void FeatureRows::settle() const {
  if (settled_) return;
  const at::Tensor index = at::cat(indices_);
  const auto* number = index.const_data_ptr<int64_t>();
  std::vector<int64_t> order(static_cast<size_t>(index.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return number[a] < number[b]; });
  const auto last = std::unique(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return number[a] == number[b]; });
  order.erase(last, order.end());
  std::vector<int64_t> place_of(static_cast<size_t>(index.numel()), -1);  // -1: came a second time
  for (size_t place = 0; place < order.size(); ++place) {
    place_of[static_cast<size_t>(order[place])] = static_cast<int64_t>(place);
  }
  at::Tensor rows = at::empty({std::ssize(order), parts_.front().size(1)}, at::kFloat);
  size_t before = 0;
  for (at::Tensor& part : parts_) {
    std::vector<int64_t> from, to;
    for (int64_t row = 0; row < part.size(0); ++row) {
      const int64_t place = place_of[before + static_cast<size_t>(row)];
      if (place < 0) continue;
      from.push_back(row);
      to.push_back(place);
    }
    before += static_cast<size_t>(part.size(0));
    rows.index_copy_(
        0, at::tensor(to, at::kLong), part.index_select(0, at::tensor(from, at::kLong)));
    part.reset();
  }
  indices_ = {index.index_select(0, at::tensor(order, at::kLong))};
  parts_ = {std::move(rows)};
  settled_ = true;
}

int64_t FeatureRows::count() const {
  settle();
  return parts_.empty() ? 0 : parts_.front().size(0);
}

at::Tensor FeatureRows::rows() const {
  settle();
  return parts_.empty() ? at::zeros({0, 0}) : parts_.front();
}

at::Tensor FeatureRows::index() const {
  settle();
  return indices_.empty() ? at::zeros({0}, at::kLong) : indices_.front();
}

void FeatureRows::gather(ProcessGroup& group, const std::string& what) {
  if (group.is_alone()) return;
  settle();
  std::vector<at::Tensor> indices = gather_rows(group, index(), what + " (numbers)");
  std::vector<at::Tensor> parts = gather_rows(group, rows(), what);
  indices_.clear();
  parts_.clear();
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    if (indices[rank].numel() == 0) continue;
    indices_.push_back(std::move(indices[rank]));
    parts_.push_back(std::move(parts[rank]));
  }
  settled_ = parts_.empty();
}

}  // namespace dalle2
