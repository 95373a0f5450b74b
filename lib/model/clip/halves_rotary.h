// SPDX-License-Identifier: MIT
// Rotary position embeddings of the transformers of x-clip and coca-pytorch. Legend: N tokens.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

namespace dalle2 {

/// Rotary position embeddings (Su et al. 2021, section 3.4.2) that pair an entry of the first half with
/// one of the second. Key `inv_freq`.
class HalvesRotaryImpl : public torch::nn::Module {
 public:
  /// @param dim entries of a head that are rotated, even; those after them stay as they are
  explicit HalvesRotaryImpl(int64_t dim);

  struct Angles {
    at::Tensor cos, sin;  ///< [N, dim / 2]; undefined: nothing is rotated
  };
  Angles angles(int64_t tokens) const;
  /// @param x [..., N, dim_head]
  static at::Tensor rotate(const at::Tensor& x, const Angles& angles);

 private:
  at::Tensor inv_freq_;  // [dim / 2]
};

}  // namespace dalle2
