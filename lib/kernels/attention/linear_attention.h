// SPDX-License-Identifier: MIT
// What linear attention (Shen et al. 2021, "Efficient Attention") makes of its projections before their products.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// All [B, heads, N, d] in memory, one head after the other.
struct LinearAttentionParts {
  at::Tensor q;  ///< softmax over d
  at::Tensor k;  ///< softmax over N
  at::Tensor v;  ///< of length 1
};

/// Whether linear_attention_parts() has loops for such projections: float32 or bfloat16 on the CPU, in inference mode. In
/// any other pass they would differ in their last bits from those of the pass with gradients, which may follow.
bool has_linear_attention_parts(const at::Tensor& qkv);

/// The results of ATen's operations and transposes, computed in fused loops. @param qkv [B, N, 3, heads, d] contiguous
LinearAttentionParts linear_attention_parts(const at::Tensor& qkv);

}  // namespace dalle2
