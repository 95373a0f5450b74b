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

/// The last `count` along `dim`.
at::Tensor last_along(const at::Tensor& x, int64_t dim, int64_t count) {
  return x.size(dim) == count ? x : x.narrow(dim, x.size(dim) - count, count);
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

RelativePositionBiasImpl::RelativePositionBiasImpl(int64_t heads, double factor) : factor_(factor) {
  embedding_ = register_module("relative_attention_bias", torch::nn::Embedding(kBuckets, heads));
}

at::Tensor RelativePositionBiasImpl::causal_bias(int64_t tokens) const {
  const at::Tensor& table = embedding_->weight;  // [buckets, heads]
  const at::Tensor buckets = relative_position_buckets(tokens, tokens + 1, table.device());
  at::Tensor bias = at::embedding(table, buckets).transpose(1, 2);  // [N, heads, N + 1]
  if (factor_ != 1) bias = bias * factor_;
  const at::Tensor ahead =
      at::ones({tokens, tokens + 1}, table.options().dtype(at::kBool).requires_grad(false)).triu(2);
  return bias.masked_fill(ahead.unsqueeze(1), -std::numeric_limits<double>::infinity());
}

CausalAttentionImpl::CausalAttentionImpl(const PriorNetworkConfig& config,
                                         const std::shared_ptr<RotaryEmbeddingImpl>& rotary,
                                         int64_t number)
    : dim_head_(config.dim_head), number_(number), dropout_(config.attn_dropout) {
  const NormLayout& norms = config.layout.norm;
  is_cosine_ = config.layout.cosine_attention;
  scale_ = is_cosine_ ? kCosineSimScale : 1.0 / std::sqrt(static_cast<double>(dim_head_));
  const int64_t inner = config.heads * dim_head_;
  null_kv_ = register_parameter("null_kv", torch::randn({2, dim_head_}));
  norm_ = register_module("norm", make_norm(config.dim, norms));
  to_q_ = register_module("to_q", make_linear(config.dim, inner, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(config.dim, 2 * dim_head_, /*bias=*/false));
  if (rotary) register_module("rotary_emb", rotary);
  to_out_ = register_module("to_out", std::make_shared<AttentionOutImpl>(inner, config.dim, norms));
}

KeysValues CausalAttentionImpl::encode(const at::Tensor& x, const AttentionPositions& positions) {
  return keys_values(norm_->forward(x), positions, nullptr);
}

KeysValues CausalAttentionImpl::keys_values(const at::Tensor& normed,
                                            const AttentionPositions& positions,
                                            const KeysValues* before) {
  const int64_t batch = normed.size(0);
  const at::Tensor kv = to_kv_->forward(normed).view({batch, normed.size(1), 2, dim_head_});
  const std::vector<at::Tensor> both = kv.unbind(2);
  at::Tensor k = both[0];
  const at::Tensor& v = both[1];
  if (positions.angles.cos.defined()) {
    k = RotaryEmbeddingImpl::rotate(k.unsqueeze(2), positions.angles).squeeze(2);
  }
  if (before != nullptr) {
    return {at::cat({before->keys.expand({batch, -1, -1}), unit(k)}, 1),
            at::cat({before->values.expand({batch, -1, -1}), v}, 1)};
  }
  const at::Tensor null_kv = null_kv_.to(kv.scalar_type()).expand({batch, 1, 2, dim_head_});
  const std::vector<at::Tensor> none = null_kv.unbind(2);
  return {unit(at::cat({none[0], k}, 1)), at::cat({none[1], v}, 1)};
}

at::Tensor CausalAttentionImpl::forward(const at::Tensor& x,
                                        const AttentionPositions& positions,
                                        const DropoutSeed& seed,
                                        int64_t num_outputs,
                                        const KeysValues* before) {
  const int64_t batch = x.size(0);
  const at::Tensor normed = norm_->forward(x);
  at::Tensor q =
      to_q_->forward(last_along(normed, 1, num_outputs)).view({batch, num_outputs, -1, dim_head_});
  if (positions.angles.cos.defined()) {
    q = RotaryEmbeddingImpl::rotate(q,
                                    {last_along(positions.angles.cos, 0, num_outputs),
                                     last_along(positions.angles.sin, 0, num_outputs)});
  }
  const auto [k, v] = keys_values(normed, positions, before);
  at::Tensor bias = last_along(positions.bias, 0, num_outputs).reshape({1, 1, -1, k.size(1)});
  if (positions.hidden.defined()) {
    bias = bias.masked_fill(positions.hidden, -std::numeric_limits<double>::infinity());
  }
  // With one key/value head the query heads are just more queries: [B, 1, N heads, dim_head].
  const at::Tensor out =
      attend(unit(q).view({batch, 1, -1, dim_head_}), k.unsqueeze(1), v.unsqueeze(1), bias, seed);
  return to_out_->forward(out.reshape({batch, num_outputs, -1}));
}

bool CausalAttentionImpl::drops() const {
  return (is_training() && dropout_ > 0) || to_q_->drops() || to_kv_->drops() ||
         to_out_->linear->drops();
}

at::Tensor CausalAttentionImpl::attend(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const at::Tensor& bias,
                                       const DropoutSeed& seed) const {
  if (!is_training() || dropout_ == 0) {
    return at::scaled_dot_product_attention(
        q, k, v, bias, /*dropout_p=*/0.0, /*is_causal=*/false, scale_);
  }
  const at::Tensor logits = at::matmul(q, k.transpose(-2, -1)) * scale_ + bias;
  const at::Tensor weights = at::softmax(logits, -1, at::kFloat);
  return at::matmul((weights * dropout_mask(weights, dropout_, seed, number_)).to(v.scalar_type()),
                    v);
}

GatedFeedForwardImpl::GatedFeedForwardImpl(const PriorNetworkConfig& config, int64_t number)
    : number_(number), dropout_(config.ff_dropout) {
  const auto inner = static_cast<int64_t>(config.ff_mult * static_cast<double>(config.dim));
  norm_ = register_module("0", make_norm(config.dim, config.layout.norm));
  in_ = register_module("1", make_linear(config.dim, 2 * inner, /*bias=*/false));
  if (config.normformer) inner_norm_ = register_module("3", make_norm(inner, config.layout.norm));
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
  const PriorLayout& layout = config.layout;
  if (config.norm_in) init_norm_ = register_module("init_norm", make_norm(config.dim, layout.norm));
  bias_ = register_module(
      "rel_pos_bias", std::make_shared<RelativePositionBiasImpl>(config.heads, layout.bias_factor));
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
  const NormLayout last = {.gamma = layout.norm.gamma, .by_max = layout.last_norm_by_max};
  if (config.norm_out) norm_ = register_module("norm", make_norm(config.dim, last));
  if (config.final_proj) {
    project_out_ = register_module("project_out", make_linear(config.dim, config.dim, false));
  }
}

AttentionPositions CausalTransformerImpl::positions(int64_t before, int64_t tokens) const {
  AttentionPositions made;
  made.bias = last_along(bias_->causal_bias(before + tokens), 0, tokens);
  if (rotary_) {
    const RotaryEmbeddingImpl::Angles all = rotary_->angles(before + tokens);
    made.angles = {last_along(all.cos, 0, tokens), last_along(all.sin, 0, tokens)};
  }
  return made;
}

PrefixCache CausalTransformerImpl::encode_prefix(const at::Tensor& tokens) {
  const int64_t count = tokens.size(1);
  const AttentionPositions made = positions(0, count);
  PrefixCache found{.tokens = count, .layers = {}};
  at::Tensor x = init_norm_ ? init_norm_->forward(tokens) : tokens;
  for (size_t i = 0; i < attentions_.size(); ++i) {
    found.layers.push_back(attentions_[i]->encode(x, made));
    if (i + 1 == attentions_.size()) break;  // later tokens see only its keys and values
    x = attentions_[i]->forward(x, made, {}, count, nullptr) + x;
    x = feed_forwards_[i]->forward(x, {}) + x;
  }
  return found;
}

at::Tensor CausalTransformerImpl::forward(const at::Tensor& tokens,
                                          const DropoutSeed& seed,
                                          int64_t num_outputs,
                                          const PrefixCache* before,
                                          const at::Tensor& key_mask) {
  AttentionPositions made = positions(before ? before->tokens : 0, tokens.size(1));
  if (key_mask.defined()) {
    made.hidden =
        at::constant_pad_nd(key_mask, {1, 0}, true).logical_not().unsqueeze(1).unsqueeze(1);
  }
  at::Tensor x = init_norm_ ? init_norm_->forward(tokens) : tokens;
  for (size_t i = 0; i < attentions_.size(); ++i) {
    // After the last attention, tokens do not depend on each other: only the outputs are computed.
    const int64_t wanted = i + 1 == attentions_.size() ? num_outputs : x.size(1);
    const KeysValues* const seen = before ? &before->layers[i] : nullptr;
    x = attentions_[i]->forward(x, made, seed, wanted, seen) + last_along(x, 1, wanted);
    x = feed_forwards_[i]->forward(x, seed) + x;
  }
  x = last_along(x, 1, num_outputs);  // of a transformer without layers
  if (norm_) x = norm_->forward(x);
  return project_out_ ? project_out_->forward(x) : x;
}

bool CausalTransformerImpl::drops() const {
  const auto any = [](const auto& layers) {
    return std::ranges::any_of(layers, [](const auto& layer) { return layer->drops(); });
  };
  return any(attentions_) || any(feed_forwards_);
}

}  // namespace dalle2
