// SPDX-License-Identifier: MIT
// Cross attention with its projections folded onto the few condition tokens, as one node of the graph with a backward pass of its own:
// half of the operations that autograd makes of the same formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// Of the map's type, except that gains and the null key may be wider. `inner` is the width of all heads together.
struct FoldedAttentionWeights {
  at::Tensor gain;      ///< [dim], of the norm of the pixels
  at::Tensor null_kv;   ///< [2, width of a head]
  at::Tensor to_q;      ///< [inner, dim]
  at::Tensor to_kv;     ///< [2 inner, cond_dim]
  at::Tensor to_out;    ///< [dim, inner]
  at::Tensor out_gain;  ///< [dim]
};

/// Adds to each pixel what it sees in the context. CrossAttentionImpl::forward() is the plain form. Has no second derivatives.
/// @param map [B, dim, H, W], channels-last; @param context [B, M, cond_dim] @return [B, dim, H, W], channels-last
at::Tensor add_folded_attention(const at::Tensor& map,
                                const at::Tensor& context,
                                const FoldedAttentionWeights& weights);

}  // namespace dalle2
