// SPDX-License-Identifier: MIT
#include "optim/power_rule.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace dalle2 {
namespace {

double variance(double gamma) {
  return (gamma + 1.0) / ((gamma + 2.0) * (gamma + 2.0) * (gamma + 3.0));
}

/// Integral of the product of two profiles over time, both of integral 1.
double inner_product(const PowerProfile& a, const PowerProfile& b) {
  const PowerProfile& sooner = a.step < b.step ? a : b;
  const PowerProfile& later = a.step < b.step ? b : a;
  const double ratio = static_cast<double>(sooner.step) / static_cast<double>(later.step);
  return (a.gamma + 1.0) * (b.gamma + 1.0) * std::pow(ratio, later.gamma) /
         ((a.gamma + b.gamma + 1.0) * static_cast<double>(later.step));
}

}  // namespace

double gamma_of_sigma(double sigma) {
  if (!(sigma > 0.0 && sigma <= kWidestSigma)) {
    throw ConfigError(
        "sigma of an average: expected a number above 0 and up to {}, got {}", kWidestSigma, sigma);
  }
  // The variance falls as gamma grows, so the interval closes in on the one solution.
  double low = 0.0, high = 1.0;
  while (variance(high) > sigma * sigma) high *= 2.0;
  while (true) {
    const double middle = 0.5 * (low + high);
    if (middle <= low || middle >= high) return middle;
    (variance(middle) > sigma * sigma ? low : high) = middle;
  }
}

double PowerRule::decay() const {
  return std::pow(1.0 - 1.0 / static_cast<double>(step_ + 1), gamma_ + 1.0);
}

void PowerRule::update(const at::Tensor& average,
                       const at::Tensor& weights,
                       const at::Tensor& skipped) const {
  const torch::NoGradGuard no_grad;
  follow(average, weights, 1.0 - decay(), skipped);
}

PostHocWeights post_hoc_weights(const std::vector<PowerProfile>& snapshots,
                                const PowerProfile& wanted) {
  D2_CHECK(!snapshots.empty(), "an average is made of at least one snapshot");
  D2_CHECK(wanted.step >= 1, "step {}: the first one is 1", wanted.step);
  const auto count = static_cast<int64_t>(snapshots.size());
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor products = at::empty({count, count}, options);
  const at::Tensor wanted_products = at::empty({count, 1}, options);
  auto product = products.accessor<double, 2>();
  auto wanted_product = wanted_products.accessor<double, 2>();
  for (int64_t i = 0; i < count; ++i) {
    const PowerProfile& mine = snapshots[static_cast<size_t>(i)];
    D2_CHECK(mine.step >= 1, "step {}: the first one is 1", mine.step);
    for (int64_t j = 0; j < count; ++j) {
      product[i][j] = inner_product(mine, snapshots[static_cast<size_t>(j)]);
    }
    wanted_product[i][0] = inner_product(mine, wanted);
  }
  // Profiles of neighbouring snapshots are nearly the same: take the solution of least norm.
  const at::Tensor solution =
      std::get<0>(at::linalg_lstsq(products, wanted_products, std::nullopt, "gelsd"));
  const double size = inner_product(wanted, wanted);
  const double distance = size - 2.0 * (solution * wanted_products).sum().item<double>() +
                          solution.t().mm(products).mm(solution).item<double>();
  PostHocWeights result;
  result.missed = std::sqrt(std::max(distance, 0.0) / size);
  const at::Tensor flat = solution.flatten().contiguous();
  result.weights.assign(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + count);
  return result;
}

}  // namespace dalle2
