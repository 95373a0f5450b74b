// SPDX-License-Identifier: MIT
// Attention of the Unet. Tokens are [B, N, D].
#pragma once

#include <torch/nn.h>

#include <memory>

#include "model/layers.h"

namespace dalle2 {

/// Logits of cosine similarities are multiplied by it.
inline constexpr double kCosineSimScale = 16.0;

/// The last stage of an attention: linear without bias, then a GainNorm (keys `0.weight`, `1.g`).
class AttentionOutImpl : public torch::nn::Module {
 public:
  AttentionOutImpl(int64_t inner, int64_t dim, const NormLayout& norm_layout = {});
  at::Tensor forward(const at::Tensor& x) { return norm->forward(linear->forward(x)); }

  std::shared_ptr<LinearLayerImpl> linear;
  std::shared_ptr<GainNormImpl> norm;
};

/// Self attention with many query heads and one shared key/value head; a learned null key and value
/// stand before the first token. The logits are 16 cos(q, k) with `cosine_sim`, else q.k / dim_head
/// (the reference scales twice by dim_head^-1/2 since 1.4.3: `layout.twice_scaled`).
class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(
      int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout = {});
  /// [B, N, dim] -> [B, N, dim], without the residual
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t dim_head_;
  bool cosine_sim_;
  double scale_;
  at::Tensor null_kv_;  // [2, dim_head]
  std::shared_ptr<GainNormImpl> norm_;
  std::shared_ptr<LinearLayerImpl> to_q_, to_kv_;
  std::shared_ptr<AttentionOutImpl> to_out_;
};

/// Attention from image tokens to condition tokens: 8 heads of 64, always. A learned null key and
/// value stand before the first condition token. Logits are q.k / 8, or 16 cos(q, k).
class CrossAttentionImpl : public torch::nn::Module {
 public:
  CrossAttentionImpl(int64_t dim,
                     int64_t context_dim,
                     bool cosine_sim,
                     const UnetLayout& layout = {});
  /// @param x [B, N, dim]; @param context [B, M, context_dim]
  /// @return [B, N, dim], without the residual
  at::Tensor forward(const at::Tensor& x, const at::Tensor& context);
  /// The map and what its pixels see in the context, on the CPU in one operation where folding pays. @param map [B, dim, H, W]
  at::Tensor add_to(const at::Tensor& map, const at::Tensor& context);

 private:
  bool folds(int64_t pixels, int64_t keys, int64_t width) const;
  bool is_one_operation(const at::Tensor& map, const at::Tensor& context) const;
  at::Tensor keys_values(const at::Tensor& context);
  at::Tensor attend(const at::Tensor& x, const at::Tensor& kv);
  at::Tensor attend_folded(const at::Tensor& x, const at::Tensor& kv);

  bool cosine_sim_, norm_by_max_;
  at::Tensor null_kv_;  // [2, 64]
  std::shared_ptr<GainNormImpl> norm_;
  std::shared_ptr<LinearLayerImpl> to_q_, to_kv_;
  std::shared_ptr<AttentionOutImpl> to_out_;
};

/// Self attention over a feature map with its residual; keys `fn.fn.*`.
class MapAttentionImpl : public torch::nn::Module {
 public:
  MapAttentionImpl(
      int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout = {});
  /// [B, C, H, W] -> [B, C, H, W]
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<AttentionImpl> attention_;
};

/// Linear attention over a feature map with its residual; keys `fn.*`. The cost grows with the
/// number of pixels, not with its square (Shen et al. 2018, "Efficient Attention").
class LinearAttentionImpl : public torch::nn::Module {
 public:
  LinearAttentionImpl(int64_t dim, int64_t heads, int64_t dim_head, const UnetLayout& layout = {});
  /// [B, C, H, W] -> [B, C, H, W]
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_, dim_head_;
  bool unit_values_, mean_values_;
  std::shared_ptr<GainNormImpl> norm_, out_norm_;
  std::shared_ptr<TokenConvImpl> to_qkv_, to_out_;
};

/// [B, C, H, W] -> [B, H W, C]
at::Tensor map_to_tokens(const at::Tensor& map);
/// [B, H W, C] -> [B, C, H, W], as a view
at::Tensor tokens_to_map(const at::Tensor& tokens, int64_t height, int64_t width);

}  // namespace dalle2
