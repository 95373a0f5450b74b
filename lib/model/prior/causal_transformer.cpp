// SPDX-License-Identifier: MIT
#include "model/prior/causal_transformer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

namespace dalle2 {
namespace {

constexpr double kRotaryBase = 10000.0;
constexpr int64_t kMostRotaryEntries = 32;
constexpr double kMostDistance = 128.0;
/// Numbers of the network's own dropouts lie below those of adapters, which begin at 0.
constexpr int64_t kFirstDropout = -2;

std::shared_ptr<GainNormImpl> make_norm(int64_t dim, bool stable = false) {
  return std::make_shared<GainNormImpl>(std::vector<int64_t>{dim}, stable);
}

}  // namespace

RotaryEmbeddingImpl::RotaryEmbeddingImpl(int64_t dim) {
  const at::Tensor powers = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  freqs = register_parameter("freqs",
                             1.0 / at::pow(at::Scalar(kRotaryBase), powers),
                             /*requires_grad=*/false);
}

RotaryEmbeddingImpl::Angles RotaryEmbeddingImpl::angles(int64_t tokens) const {
  const at::Tensor positions = at::arange(tokens, freqs.options().requires_grad(false));
  const at::Tensor angles = positions.unsqueeze(1) * freqs.unsqueeze(0);
  return {angles.cos(), angles.sin()};
}

at::Tensor RotaryEmbeddingImpl::rotate(const at::Tensor& x, const Angles& angles) {
  const int64_t turned = 2 * angles.cos.size(1);
  const at::Tensor pairs = x.narrow(-1, 0, turned).unflatten(-1, {-1, 2});
  const at::Tensor a = pairs.select(-1, 0);
  const at::Tensor b = pairs.select(-1, 1);
  const at::Tensor cos = angles.cos.unsqueeze(1);  // [N, 1, dim / 2]
  const at::Tensor sin = angles.sin.unsqueeze(1);
  const at::Tensor rotated =
      at::stack({a * cos - b * sin, b * cos + a * sin}, -1).flatten(-2).to(x.scalar_type());
  return at::cat({rotated, x.narrow(-1, turned, x.size(-1) - turned)}, -1);
}

at::Tensor relative_position_buckets(int64_t queries, int64_t keys, const at::Device& device) {
  constexpr int64_t kExact = RelativePositionBiasImpl::kBuckets / 2;
  const auto integers = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor back =
      (at::arange(queries, integers).unsqueeze(1) - at::arange(keys, integers)).clamp_min(0);
  const at::Tensor octaves = at::log(back.clamp_min(kExact).to(at::kFloat) / kExact) /
                             std::log(kMostDistance / static_cast<double>(kExact));
  const at::Tensor coarse = kExact + (octaves * kExact).to(at::kLong);
  return at::where(back < kExact, back, coarse.clamp_max(RelativePositionBiasImpl::kBuckets - 1));
}

RelativePositionBiasImpl::RelativePositionBiasImpl(int64_t heads) {
  embedding_ = register_module("relative_attention_bias", torch::nn::Embedding(kBuckets, heads));
}

at::Tensor RelativePositionBiasImpl::causal_bias(int64_t tokens) const {
  const at::Tensor& table = embedding_->weight;  // [buckets, heads]
  const at::Tensor buckets = relative_position_buckets(tokens, tokens + 1, table.device());
  const at::Tensor bias = at::embedding(table, buckets).transpose(1, 2);  // [N, heads, N + 1]
  const at::Tensor ahead =
      at::ones({tokens, tokens + 1}, table.options().dtype(at::kBool).requires_grad(false)).triu(2);
  return bias.masked_fill(ahead.unsqueeze(1), -std::numeric_limits<double>::infinity());
}

CausalAttentionImpl::CausalAttentionImpl(const PriorNetworkConfig& config,
                                         const std::shared_ptr<RotaryEmbeddingImpl>& rotary,
                                         int64_t number)
    : dim_head_(config.dim_head), number_(number), dropout_(config.attn_dropout) {
  const int64_t inner = config.heads * dim_head_;
  null_kv_ = register_parameter("null_kv", torch::randn({2, dim_head_}));
  norm_ = register_module("norm", make_norm(config.dim));
  to_q_ = register_module("to_q", make_linear(config.dim, inner, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(config.dim, 2 * dim_head_, /*bias=*/false));
  if (rotary) register_module("rotary_emb", rotary);
  to_out_ = register_module("to_out", std::make_shared<AttentionOutImpl>(inner, config.dim));
}

at::Tensor CausalAttentionImpl::forward(const at::Tensor& x,
                                        const AttentionPositions& positions,
                                        const DropoutSeed& seed) {
  const int64_t batch = x.size(0);
  const int64_t tokens = x.size(1);
  const at::Tensor normed = norm_->forward(x);
  at::Tensor q = to_q_->forward(normed).view({batch, tokens, -1, dim_head_});
  const at::Tensor kv = to_kv_->forward(normed).view({batch, tokens, 2, dim_head_});
  at::Tensor k = kv.narrow(2, 0, 1);
  if (positions.angles.cos.defined()) {
    q = RotaryEmbeddingImpl::rotate(q, positions.angles);
    k = RotaryEmbeddingImpl::rotate(k, positions.angles);
  }
  const at::Tensor null_kv = null_kv_.to(kv.scalar_type()).expand({batch, 1, 2, dim_head_});
  k = at::cat({null_kv.select(2, 0), k.squeeze(2)}, 1);  // [B, N + 1, dim_head]
  const at::Tensor v = at::cat({null_kv.select(2, 1), kv.select(2, 1)}, 1);
  // With one key/value head the query heads are just more queries: [B, 1, N heads, dim_head].
  const at::Tensor out = attend(l2_normalize(q).view({batch, 1, -1, dim_head_}),
                                l2_normalize(k).unsqueeze(1),
                                v.unsqueeze(1),
                                positions.bias.reshape({1, 1, -1, tokens + 1}),
                                seed);
  return to_out_->forward(out.reshape({batch, tokens, -1}));
}

at::Tensor CausalAttentionImpl::attend(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const at::Tensor& bias,
                                       const DropoutSeed& seed) const {
  if (!is_training() || dropout_ == 0) {
    return at::scaled_dot_product_attention(
        q, k, v, bias, /*dropout_p=*/0.0, /*is_causal=*/false, kCosineSimScale);
  }
  const at::Tensor logits = at::matmul(q, k.transpose(-2, -1)) * kCosineSimScale + bias;
  const at::Tensor weights = at::softmax(logits, -1, at::kFloat);
  return at::matmul((weights * dropout_mask(weights, dropout_, seed, number_)).to(v.scalar_type()),
                    v);
}

GatedFeedForwardImpl::GatedFeedForwardImpl(const PriorNetworkConfig& config, int64_t number)
    : number_(number), dropout_(config.ff_dropout) {
  const auto inner = static_cast<int64_t>(config.ff_mult * static_cast<double>(config.dim));
  norm_ = register_module("0", make_norm(config.dim));
  in_ = register_module("1", make_linear(config.dim, 2 * inner, /*bias=*/false));
  if (config.normformer) inner_norm_ = register_module("3", make_norm(inner));
  out_ = register_module("5", make_linear(inner, config.dim, /*bias=*/false));
}

at::Tensor GatedFeedForwardImpl::forward(const at::Tensor& x, const DropoutSeed& seed) {
  const auto halves = in_->forward(norm_->forward(x)).chunk(2, -1);
  at::Tensor h = halves[0] * at::silu(halves[1]);
  if (inner_norm_) h = inner_norm_->forward(h);
  if (is_training() && dropout_ > 0) h = h * dropout_mask(h, dropout_, seed, number_);
  return out_->forward(h);
}

CausalTransformerImpl::CausalTransformerImpl(const PriorNetworkConfig& config) {
  if (config.norm_in) init_norm_ = register_module("init_norm", make_norm(config.dim));
  bias_ = register_module("rel_pos_bias", std::make_shared<RelativePositionBiasImpl>(config.heads));
  if (config.rotary_emb) {
    rotary_ = std::make_shared<RotaryEmbeddingImpl>(std::min(kMostRotaryEntries, config.dim_head));
  }
  const auto layers = add_group(*this, "layers");
  for (int64_t i = 0; i < config.depth; ++i) {
    const auto layer = add_group(*layers, std::to_string(i));
    const int64_t number = kFirstDropout - 2 * i;
    attentions_.push_back(layer->register_module(
        "0", std::make_shared<CausalAttentionImpl>(config, rotary_, number)));
    feed_forwards_.push_back(
        layer->register_module("1", std::make_shared<GatedFeedForwardImpl>(config, number - 1)));
  }
  if (config.norm_out) norm_ = register_module("norm", make_norm(config.dim, /*stable=*/true));
  if (config.final_proj) {
    project_out_ = register_module("project_out", make_linear(config.dim, config.dim, false));
  }
}

at::Tensor CausalTransformerImpl::forward(const at::Tensor& tokens, const DropoutSeed& seed) {
  AttentionPositions positions;
  positions.bias = bias_->causal_bias(tokens.size(1));
  if (rotary_) positions.angles = rotary_->angles(tokens.size(1));
  at::Tensor x = init_norm_ ? init_norm_->forward(tokens) : tokens;
  for (size_t i = 0; i < attentions_.size(); ++i) {
    x = attentions_[i]->forward(x, positions, seed) + x;
    x = feed_forwards_[i]->forward(x, seed) + x;
  }
  if (norm_) x = norm_->forward(x);
  return project_out_ ? project_out_->forward(x) : x;
}

}  // namespace dalle2
