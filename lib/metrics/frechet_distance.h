// SPDX-License-Identifier: MIT
// Fréchet distance of two sets of features (Heusel et al. 2017, arXiv 1706.08500, equation 6).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// What a set's mean and covariance follow from.
struct FeatureSums {
  explicit FeatureSums(int64_t width = 0);
  /// @param features [n, d]
  void add(const at::Tensor& features);

  int64_t count = 0;
  at::Tensor sum;    ///< [d] float64
  at::Tensor outer;  ///< [d, d] float64, of the products of a row with itself
};

/// |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), covariances over n - 1; not below 0.
/// @param real [n, d] @param generated [m, d] float; n and m at least 2
/// Where n + m is small beside d, by the singular values of a matrix of n by m.
double frechet_distance(const at::Tensor& real, const at::Tensor& generated);

/// The same from sums: by eigenvalues of a symmetric matrix of d by d.
double frechet_distance(const FeatureSums& real, const FeatureSums& generated);

}  // namespace dalle2
