// SPDX-License-Identifier: MIT
// Inception score (Salimans et al. 2016, arXiv 1606.03498, section 4).
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace dalle2 {

struct MeanAndDeviation {
  double mean = 0;
  double deviation = 0;  ///< NaN for a single part, where it is over n - 1
};

/// exp of the mean divergence of each sample's classes from those of its part, over `splits` parts
/// in a random order. Fewer samples than parts: a part a sample, as torch.chunk cuts. The deviation
/// is over n - 1, as torchmetrics has it.
/// @param logits [n, classes] @param generator of the order; none: as they come
MeanAndDeviation inception_score(const at::Tensor& logits,
                                 int64_t splits,
                                 std::optional<at::Generator> generator);

}  // namespace dalle2
