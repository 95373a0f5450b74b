// SPDX-License-Identifier: MIT
#include "metrics/feature_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace dalle2 {

void FeatureRows::add(const at::Tensor& index,
                      const at::Tensor& features,
                      const std::string& of_what) {
  D2_CHECK(features.dim() == 2 && index.numel() == features.size(0), "a row a number");
  D2_CHECK(parts_.empty() || parts_.front().size(1) == features.size(1), "rows of one width");
  if (index.numel() == 0) return;
  at::Tensor rows = features.to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor finite = rows.isfinite().all(1);
  if (!finite.all().item<bool>()) {
    const int64_t row = finite.logical_not().nonzero()[0].item<int64_t>();
    throw DataError("features of the {} image {} are not finite (NaN or infinite)",
                    of_what,
                    index[row].item<int64_t>());
  }
  // What the caller goes on to change is not what is kept.
  if (rows.is_same(features)) rows = rows.clone();
  indices_.push_back(index.to(at::kCPU, at::kLong).clone());
  parts_.push_back(std::move(rows));
}

void FeatureRows::settle() const {
  if (parts_.empty()) return;
  const at::Tensor index = at::cat(indices_);
  const at::Tensor rows = at::cat(parts_);
  const auto* number = index.const_data_ptr<int64_t>();
  std::vector<int64_t> order(static_cast<size_t>(index.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return number[a] < number[b]; });
  const auto last = std::unique(
      order.begin(), order.end(), [&](int64_t a, int64_t b) { return number[a] == number[b]; });
  order.erase(last, order.end());
  const at::Tensor chosen = at::tensor(order, at::kLong);
  indices_ = {index.index_select(0, chosen)};
  parts_ = {rows.index_select(0, chosen)};
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

std::vector<at::Tensor> FeatureRows::state() const {
  return {index(), rows()};
}

void FeatureRows::merge(const std::vector<at::Tensor>& other) {
  D2_CHECK(other.size() == 2, "the state of feature rows is an index and the rows");
  if (other[0].numel() == 0) return;
  indices_.push_back(other[0].to(at::kCPU));
  parts_.push_back(other[1].to(at::kCPU));
}

}  // namespace dalle2
