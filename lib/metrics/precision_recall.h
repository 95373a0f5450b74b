// SPDX-License-Identifier: MIT
// Improved precision and recall (Kynkäänniemi et al. 2019, arXiv 1904.06991, equations 1 and 2).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

struct PrecisionAndRecall {
  double precision = 0;  ///< share of generated samples within the real ones' neighbourhoods
  double recall = 0;     ///< share of real samples within the generated ones'
};

/// A set's manifold is the union of balls about its samples, each reaching to the k-th nearest
/// other sample of the set.
/// @param real [n, d] @param generated [m, d]; both more than `neighbours`
PrecisionAndRecall precision_and_recall(const at::Tensor& real,
                                        const at::Tensor& generated,
                                        int64_t neighbours = 3);

}  // namespace dalle2
