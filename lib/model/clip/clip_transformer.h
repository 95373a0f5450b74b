// SPDX-License-Identifier: MIT
// The transformer of both towers of a CLIP. Names of parameters are those of OpenAI and open_clip.
// Legend: B batch, N tokens, W width.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/layers.h"

namespace dalle2 {

/// LayerNorm in float32 with a gain and a bias; the result has the type of the input.
class ClipNormImpl : public torch::nn::LayerNormImpl {
 public:
  ClipNormImpl(int64_t width, double eps);
  /// [..., W] -> [..., W]
  at::Tensor forward(const at::Tensor& x);
};

struct ClipTransformerShape {
  int64_t width = 0, layers = 0, heads = 0;
  double mlp_ratio = 4;
  bool quick_gelu = false;
  bool causal = false;
  double norm_eps = 1e-5;
};

/// One token of each sample.
struct ChosenTokens {
  at::Tensor places;  ///< [B] int64, counted through all samples: sample * N + token
  at::Tensor seen;    ///< [B, 1, 1, N] bool, the keys that each looks at; undefined: all

  /// [B, N, W] -> [B, 1, W]
  at::Tensor of(const at::Tensor& x) const;
};

/// Attention over all tokens, keys, queries and values from one product; keys `in_proj_weight`,
/// `in_proj_bias`, `out_proj.*`.
class ClipAttentionImpl : public torch::nn::Module {
 public:
  explicit ClipAttentionImpl(const ClipTransformerShape& shape);
  /// [B, N, W] -> [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x);
  /// The same at the chosen tokens alone. [B, N, W] -> [B, 1, W]
  at::Tensor forward_at(const at::Tensor& x, const ChosenTokens& chosen);

  at::Tensor in_proj_weight;  ///< [3 W, W]
  at::Tensor in_proj_bias;    ///< [3 W]
  std::shared_ptr<LinearLayerImpl> out_proj;

 private:
  at::Tensor by_heads(const at::Tensor& x) const;
  at::Tensor joined(const at::Tensor& mixed);

  int64_t heads_;
  bool causal_;
};

/// Pre-norm attention and feed-forward layers, each with its residual; keys `ln_1.*`, `attn.*`,
/// `ln_2.*`, `mlp.c_fc.*`, `mlp.c_proj.*`.
class ClipBlockImpl : public torch::nn::Module {
 public:
  explicit ClipBlockImpl(const ClipTransformerShape& shape);
  /// [B, N, W] -> [B, N, W]
  at::Tensor forward(const at::Tensor& x);
  /// [B, N, W] -> [B, 1, W]
  at::Tensor forward_at(const at::Tensor& x, const ChosenTokens& chosen);

  std::shared_ptr<ClipAttentionImpl> attn;
  std::shared_ptr<LinearLayerImpl> c_fc, c_proj;

 private:
  at::Tensor with_feed_forward(const at::Tensor& h);

  bool quick_gelu_;
  std::shared_ptr<ClipNormImpl> ln_1_, ln_2_;
};

/// Keys `resblocks.N.*`.
class ClipTransformerImpl : public torch::nn::Module {
 public:
  explicit ClipTransformerImpl(const ClipTransformerShape& shape);
  /// [B, N, W] -> [B, N, W]
  at::Tensor forward(at::Tensor x);
  /// forward() at one token of each sample: of the last layer nothing else is calculated but the keys
  /// and values. [B, N, W] -> [B, W]
  at::Tensor forward_at(at::Tensor x, const ChosenTokens& chosen);

  const std::vector<std::shared_ptr<ClipBlockImpl>>& blocks() const { return blocks_; }

 private:
  std::vector<std::shared_ptr<ClipBlockImpl>> blocks_;
};

}  // namespace dalle2
