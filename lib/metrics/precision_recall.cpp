// SPDX-License-Identifier: MIT
#include "metrics/precision_recall.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "metrics/still_working.h"

namespace dalle2 {
namespace {

/// Rows of a matrix of distances that are there at once.
constexpr int64_t kPairsAtOnce = int64_t{1} << 22;

/// Calls `use(begin, distances [rows, m])` for the rows of a, some at a time.
template <typename Use>
void for_distances(const at::Tensor& a, const at::Tensor& b, const Use& use) {
  const int64_t step = std::max<int64_t>(1, kPairsAtOnce / b.size(0));
  for (int64_t begin = 0; begin < a.size(0); begin += step) {
    still_working();
    use(begin, at::cdist(a.narrow(0, begin, std::min(step, a.size(0) - begin)), b));
  }
}

/// [n] to the k-th nearest other row.
at::Tensor radii_of(const at::Tensor& rows, int64_t neighbours) {
  std::vector<at::Tensor> radii;
  for_distances(rows, rows, [&](int64_t, const at::Tensor& distances) {
    // The nearest is the row itself.
    radii.push_back(std::get<0>(distances.kthvalue(neighbours + 1, 1)));
  });
  return at::cat(radii);
}

/// Share of `points` within a ball about a row of `set`.
double share_within(const at::Tensor& points, const at::Tensor& set, const at::Tensor& radii) {
  int64_t within = 0;
  for_distances(points, set, [&](int64_t, const at::Tensor& distances) {
    within += (distances <= radii).any(1).sum().item<int64_t>();
  });
  return static_cast<double>(within) / static_cast<double>(points.size(0));
}

}  // namespace

PrecisionAndRecall precision_and_recall(const at::Tensor& real,
                                        const at::Tensor& generated,
                                        int64_t neighbours) {
  D2_CHECK(real.size(1) == generated.size(1), "features of one width");
  D2_CHECK(real.size(0) > neighbours && generated.size(0) > neighbours, "others than neighbours");
  const at::Tensor x = real.to(at::kDouble), y = generated.to(at::kDouble);
  return {share_within(y, x, radii_of(x, neighbours)), share_within(x, y, radii_of(y, neighbours))};
}

}  // namespace dalle2
