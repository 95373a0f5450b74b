// SPDX-License-Identifier: MIT
// The layers of a CoCa of coca-pytorch. Names of parameters are coca-pytorch's.
// Legend: B batch, N tokens, M tokens of the context, W width.
#pragma once

#include <torch/nn.h>

#include <array>
#include <cstdint>
#include <memory>

#include "model/clip/halves_rotary.h"
#include "model/layers.h"

namespace dalle2 {

/// LayerNorm over the last dimension in float32, with a gain `gamma` that is trained and a bias `beta`
/// that is not; the result has the type of the input.
class GammaNormImpl : public torch::nn::Module {
 public:
  explicit GammaNormImpl(int64_t width);
  /// [..., W] -> [..., W]
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor gamma_, beta_;  // [W]
};

struct CocaLayerShape {
  int64_t width = 0, heads = 0, head_width = 0, forward_mult = 0;
};

/// Causal attention with one key and value for all heads, and a SwiGLU feed-forward beside it
/// (Wang & Komatsuzaki 2021, GPT-J). Keys `norm.*`, `rotary_emb.inv_freq`, `fused_attn_ff_proj.weight`,
/// `attn_out.weight`, `ff_out.1.weight`.
class ParallelBlockImpl : public torch::nn::Module {
 public:
  explicit ParallelBlockImpl(const CocaLayerShape& shape);
  /// @param x [B, N, W] @param seen [B, 1, N, N] bool: the keys that each token looks at
  /// @return [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x, const at::Tensor& seen);

 private:
  int64_t heads_;
  std::array<int64_t, 4> widths_;  // of queries, key, value and feed-forward in the first product
  std::shared_ptr<GammaNormImpl> norm_;
  std::shared_ptr<HalvesRotaryImpl> rotary_emb_;
  std::shared_ptr<LinearLayerImpl> fused_attn_ff_proj_, attn_out_, ff_out_;
};

/// What a cross attention has beside attention.
enum class CrossKind {
  kPooling,     ///< a norm of the context: key `context_norm.*`
  kMultimodal,  ///< a feed-forward, which only captioning needs: keys `ff.0.weight`, `ff.2.weight`
};

/// Attention to a context, with one key and value for all heads. Keys `norm.*`, `to_q.weight`,
/// `to_kv.weight`, `to_out.weight`.
class CocaCrossAttentionImpl : public torch::nn::Module {
 public:
  CocaCrossAttentionImpl(const CocaLayerShape& shape, int64_t context_width, CrossKind kind);
  /// Of the kind that pools alone. @param x [B, N, W] @param context [B, M, context width]
  /// @return [B, N, W]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& context);

 private:
  int64_t heads_;
  std::shared_ptr<GammaNormImpl> norm_, context_norm_;  // the second of kPooling alone
  std::shared_ptr<LinearLayerImpl> to_q_, to_kv_, to_out_;
};

}  // namespace dalle2
