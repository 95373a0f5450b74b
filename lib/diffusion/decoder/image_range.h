// SPDX-License-Identifier: MIT
// The two ranges of an image: [0, 1] outside, [-1, 1] inside the diffusion.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace dalle2 {

/// Maps between the range of the data and [-1, 1]. Without auto_normalize the data is in [-1, 1]
/// already.
struct ImageRange {
  bool auto_normalize = true;

  at::Tensor normalize(const at::Tensor& image) const {
    return auto_normalize ? image * 2 - 1 : image;
  }
  at::Tensor unnormalize(const at::Tensor& image) const {
    return auto_normalize ? (image + 1) * 0.5 : image;
  }
  /// Lowest and highest value of the data's images.
  std::pair<double, double> bounds() const { return {auto_normalize ? 0.0 : -1.0, 1.0}; }
};

}  // namespace dalle2
