// SPDX-License-Identifier: MIT
#include "metrics/frechet_distance.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "metrics/still_working.h"

namespace dalle2 {
namespace {

/// Rows of a set that are turned into float64 at once.
constexpr int64_t kRowsAtOnce = 1024;

at::Tensor centred(const at::Tensor& features) {
  const at::Tensor rows = features.to(at::kDouble);
  return rows - rows.mean(0, /*keepdim=*/true);
}

/// The covariance's square root (symmetric, positive semi-definite); rounding below 0 counts as 0.
at::Tensor square_root(const at::Tensor& covariance) {
  const auto [values, vectors] = at::linalg_eigh(covariance);
  return at::matmul(vectors * values.clamp_min(0).sqrt(), vectors.t());
}

}  // namespace

FeatureSums::FeatureSums(int64_t width)
    : sum(at::zeros({width}, at::kDouble)), outer(at::zeros({width, width}, at::kDouble)) {}

void FeatureSums::add(const at::Tensor& features) {
  for (int64_t begin = 0; begin < features.size(0); begin += kRowsAtOnce) {
    still_working();
    const at::Tensor rows =
        features.narrow(0, begin, std::min(kRowsAtOnce, features.size(0) - begin)).to(at::kDouble);
    sum += rows.sum(0);
    outer.addmm_(rows.t(), rows);
  }
  count += features.size(0);
}

double frechet_distance(const at::Tensor& real, const at::Tensor& generated) {
  D2_CHECK(real.dim() == 2 && generated.dim() == 2 && real.size(1) == generated.size(1),
           "features of one width");
  D2_CHECK(real.size(0) >= 2 && generated.size(0) >= 2, "a covariance needs two samples");
  if (real.size(0) + generated.size(0) > 2 * real.size(1)) {
    FeatureSums of_real(real.size(1)), of_generated(real.size(1));
    of_real.add(real);
    of_generated.add(generated);
    return frechet_distance(of_real, of_generated);
  }
  // S1 = A'A with A the centred rows over (n - 1)^(1/2), S2 = B'B likewise. The eigenvalues of S1 S2
  // that are not 0 are the squared singular values of AB'.
  const at::Tensor a = centred(real), b = centred(generated);
  still_working();
  const double n = static_cast<double>(real.size(0)), m = static_cast<double>(generated.size(0));
  const double root_trace =
      at::linalg_svdvals(at::matmul(a, b.t())).sum().item<double>() / std::sqrt((n - 1) * (m - 1));
  const at::Tensor apart = real.to(at::kDouble).mean(0) - generated.to(at::kDouble).mean(0);
  const double distance = apart.square().sum().item<double>() +
                          a.square().sum().item<double>() / (n - 1) +
                          b.square().sum().item<double>() / (m - 1) - 2 * root_trace;
  return std::max(distance, 0.0);
}

double frechet_distance(const FeatureSums& real, const FeatureSums& generated) {
  D2_CHECK(real.count >= 2 && generated.count >= 2, "a covariance needs two samples");
  const auto mean_of = [](const FeatureSums& sums) {
    return sums.sum / static_cast<double>(sums.count);
  };
  const auto covariance_of = [&](const FeatureSums& sums) {
    const at::Tensor mean = mean_of(sums);
    return (sums.outer - static_cast<double>(sums.count) * at::outer(mean, mean)) /
           static_cast<double>(sums.count - 1);
  };
  const at::Tensor s1 = covariance_of(real), s2 = covariance_of(generated);
  still_working();
  // (S1 S2)^(1/2) has the trace of (R S2 R)^(1/2) with R = S1^(1/2), and R S2 R is symmetric.
  const at::Tensor root = square_root(s1);
  still_working();
  const at::Tensor inner = at::matmul(at::matmul(root, s2), root);
  still_working();
  const double root_trace =
      at::linalg_eigvalsh((inner + inner.t()) / 2).clamp_min(0).sqrt().sum().item<double>();
  const double distance = (mean_of(real) - mean_of(generated)).square().sum().item<double>() +
                          s1.trace().item<double>() + s2.trace().item<double>() - 2 * root_trace;
  return std::max(distance, 0.0);
}

}  // namespace dalle2
