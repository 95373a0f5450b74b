// SPDX-License-Identifier: MIT
#include "model/attention.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

#include "kernels/cpu_algorithms.h"
#include "kernels/half_weights.h"
#include "model/folded_attention.h"

namespace dalle2 {
namespace {

constexpr int64_t kCrossHeads = 8;
constexpr int64_t kCrossDimHead = 64;
constexpr int64_t kCrossInner = kCrossHeads * kCrossDimHead;

/// Scaled dot product attention. The CPU's backward pass with narrow heads takes twice the time in bfloat16
/// that it takes in float32, in which the sums are anyway. Its forward pass alone is faster in bfloat16.
at::Tensor attention_in_fast_type(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  double scale) {
  constexpr int64_t kNarrow = 16;
  const bool widens = q.is_cpu() && q.scalar_type() == at::kBFloat16 && q.size(-1) <= kNarrow &&
                      !c10::InferenceMode::is_enabled();
  if (!widens) {
    return at::scaled_dot_product_attention(
        q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false, scale);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  return at::scaled_dot_product_attention(q.to(at::kFloat),
                                          k.to(at::kFloat),
                                          v.to(at::kFloat),
                                          /*attn_mask=*/{},
                                          /*dropout_p=*/0.0,
                                          /*is_causal=*/false,
                                          scale)
      .to(at::kBFloat16);
}

}  // namespace

at::Tensor map_to_tokens(const at::Tensor& map) {
  return map.flatten(2).transpose(1, 2);
}

at::Tensor tokens_to_map(const at::Tensor& tokens, int64_t height, int64_t width) {
  return tokens.transpose(1, 2).unflatten(2, {height, width});
}

AttentionOutImpl::AttentionOutImpl(int64_t inner, int64_t dim, const NormLayout& norm_layout) {
  linear = register_module("0", make_linear(inner, dim, /*bias=*/false));
  norm = register_module("1", make_norm(dim, norm_layout));
}

AttentionImpl::AttentionImpl(
    int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout)
    : dim_head_(dim_head), cosine_sim_(cosine_sim) {
  const auto width = static_cast<double>(dim_head);
  scale_ = cosine_sim            ? kCosineSimScale
           : layout.twice_scaled ? 1.0 / width
                                 : 1.0 / std::sqrt(width);
  null_kv_ = register_parameter("null_kv", torch::randn({2, dim_head}));
  norm_ = register_module("norm", make_norm(dim, layout.norm));
  to_q_ = register_module("to_q", make_linear(dim, heads * dim_head, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(dim, 2 * dim_head, /*bias=*/false));
  to_out_ = register_module("to_out",
                            std::make_shared<AttentionOutImpl>(heads * dim_head, dim, layout.norm));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const int64_t tokens = x.size(1);
  const at::Tensor normed = norm_->forward(x);
  // With one key/value head the query heads are just more queries: [B, 1, N heads, d], no copy.
  at::Tensor q = to_q_->forward(normed).view({batch, 1, -1, dim_head_});
  const at::Tensor projected = to_kv_->forward(normed);  // [B, N, 2 d]
  const at::Tensor null_kv = null_kv_.to(projected.scalar_type()).view({1, 1, 2 * dim_head_});
  const at::Tensor kv =
      at::cat({null_kv.expand({batch, 1, -1}), projected}, 1).unsqueeze(1);  // [B, 1, N + 1, 2 d]
  const std::vector<at::Tensor> both = kv.chunk(2, -1);
  at::Tensor k = both[0];
  const at::Tensor& v = both[1];
  if (cosine_sim_) {
    q = l2_normalize(q);
    k = l2_normalize(k);
  }
  const at::Tensor out = attention_in_fast_type(q, k, v, scale_);
  return to_out_->forward(out.reshape({batch, tokens, -1}));
}

CrossAttentionImpl::CrossAttentionImpl(int64_t dim,
                                       int64_t context_dim,
                                       bool cosine_sim,
                                       const UnetLayout& layout)
    : cosine_sim_(cosine_sim), norm_by_max_(layout.norm.by_max) {
  null_kv_ = register_parameter("null_kv", torch::randn({2, kCrossDimHead}));
  norm_ = register_module("norm", make_norm(dim, layout.norm));
  to_q_ = register_module("to_q", make_linear(dim, kCrossInner, /*bias=*/false));
  to_kv_ = register_module("to_kv", make_linear(context_dim, 2 * kCrossInner, /*bias=*/false));
  to_out_ =
      register_module("to_out", std::make_shared<AttentionOutImpl>(kCrossInner, dim, layout.norm));
}

at::Tensor CrossAttentionImpl::forward(const at::Tensor& x, const at::Tensor& context) {
  const at::Tensor normed = norm_->forward(x);
  const at::Tensor kv = keys_values(context);
  if (!folds(x.size(1), kv.size(1), x.size(2))) return to_out_->forward(attend(normed, kv));
  return to_out_->norm->forward(attend_folded(normed, kv));
}

bool CrossAttentionImpl::folds(int64_t pixels, int64_t keys, int64_t width) const {
  // Multiplications a sample, up to a common factor: with n pixels, m condition tokens and width d,
  // the plain way takes d * 512 * n twice and 512 * n * m twice; folded it is the projections of m
  // tokens and 8 * m logits a pixel. A dozen tokens make folding ten times cheaper.
  const double n = static_cast<double>(pixels);
  const double m = static_cast<double>(keys);
  const double d = static_cast<double>(width);
  const double plain = n * (d + m) * static_cast<double>(kCrossInner);
  const double folded =
      m * d * static_cast<double>(kCrossInner) + n * m * d * static_cast<double>(kCrossHeads);
  const bool drops = to_q_->drops() || to_out_->linear->drops();
  return !cosine_sim_ && !drops && plain >= folded;
}

// A sampler keeps views of weights at rest, so that the plain form is as fast there. The answer is the same with and without gradients:
// activations that are computed again have the same bits.
bool CrossAttentionImpl::is_one_operation(const at::Tensor& map, const at::Tensor& context) const {
  if (!uses_cpu_algorithms(map.device()) || c10::InferenceMode::is_enabled() ||
      !map.is_contiguous(at::MemoryFormat::ChannelsLast) || norm_by_max_ ||
      !folds(map.size(2) * map.size(3), context.size(1) + 1, map.size(1))) {
    return false;
  }
  const at::ScalarType dtype = map.scalar_type();
  if (context.scalar_type() != dtype || (at::autocast::is_autocast_enabled(at::kCPU) &&
                                         at::autocast::get_autocast_dtype(at::kCPU) != dtype)) {
    return false;
  }
  for (const auto& layer : {to_q_, to_kv_, to_out_->linear}) {
    const at::Tensor weight = in_half(layer->weight);
    if (layer->adapter() || !layer->weight.requires_grad() || !weight.is_contiguous() ||
        weight.scalar_type() != dtype) {
      return false;
    }
  }
  return true;
}

at::Tensor CrossAttentionImpl::add_to(const at::Tensor& map, const at::Tensor& context) {
  if (is_one_operation(map, context)) {
    return add_folded_attention(map,
                                context,
                                {.gain = norm_->g,
                                 .null_kv = null_kv_,
                                 .to_q = in_half(to_q_->weight),
                                 .to_kv = in_half(to_kv_->weight),
                                 .to_out = in_half(to_out_->linear->weight),
                                 .out_gain = to_out_->norm->g});
  }
  return map + tokens_to_map(forward(map_to_tokens(map), context), map.size(2), map.size(3));
}

// Null key and value, then those of the context: [B, M + 1, 2 (k, v), heads, 64].
at::Tensor CrossAttentionImpl::keys_values(const at::Tensor& context) {
  const at::Tensor projected =
      to_kv_->forward(context).unflatten(-1, {2, kCrossHeads, kCrossDimHead});
  const at::Tensor null_kv = null_kv_.to(projected.scalar_type()).view({1, 1, 2, 1, -1});
  return at::cat({null_kv.expand({context.size(0), 1, 2, kCrossHeads, kCrossDimHead}), projected},
                 1);
}

// [B, N, 512]
at::Tensor CrossAttentionImpl::attend(const at::Tensor& x, const at::Tensor& kv) {
  at::Tensor q = to_q_->forward(x).unflatten(-1, {kCrossHeads, kCrossDimHead}).transpose(1, 2);
  const std::vector<at::Tensor> both = kv.unbind(2);
  at::Tensor k = both[0].transpose(1, 2);  // [B, heads, M + 1, 64]
  const at::Tensor v = both[1].transpose(1, 2);
  if (cosine_sim_) {
    q = l2_normalize(q);
    k = l2_normalize(k);
  }
  const double scale = cosine_sim_ ? kCosineSimScale : 1.0 / std::sqrt(double{kCrossDimHead});
  return at::scaled_dot_product_attention(
             q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false, scale)
      .transpose(1, 2)
      .flatten(2);
}

// The same with the 512-wide projections moved from the pixels to the few condition tokens: (x
// Wq^T) k^T = x (k Wq)^T and (P v) Wo^T = P (v Wo^T). Includes to_out's linear: [B, N, dim].
at::Tensor CrossAttentionImpl::attend_folded(const at::Tensor& x, const at::Tensor& kv) {
  const int64_t batch = x.size(0);
  const int64_t keys = kv.size(1);
  const int64_t dim = x.size(2);
  // [heads, B (M + 1), 64]
  const auto per_head = [](const at::Tensor& one) {
    return one.permute({2, 0, 1, 3}).reshape({kCrossHeads, -1, kCrossDimHead});
  };
  const std::vector<at::Tensor> both = kv.unbind(2);
  // [heads, B (M + 1), dim] -> [B, heads (M + 1), dim]
  const auto per_sample = [&](const at::Tensor& t) {
    return t.view({kCrossHeads, batch, keys, dim}).transpose(0, 1).reshape({batch, -1, dim});
  };
  const double scale = 1.0 / std::sqrt(double{kCrossDimHead});
  const auto by_heads_in = [&](const at::Tensor& weight) {  // [512, dim] -> [heads, 64, dim]
    return weight.view({kCrossHeads, kCrossDimHead, dim});
  };
  const auto by_heads_out = [&](const at::Tensor& weight) {  // [dim, 512] -> [heads, 64, dim]
    return weight.view({dim, kCrossHeads, kCrossDimHead}).permute({1, 2, 0});
  };
  const at::Tensor k = per_sample(to_q_->multiply(per_head(both[0]) * scale, by_heads_in));
  const at::Tensor v = per_sample(to_out_->linear->multiply(per_head(both[1]), by_heads_out));
  // Pixels are the fastest dimension of the logits, so the softmax runs over whole vectors.
  const at::Tensor logits = at::bmm(k, x.transpose(1, 2)).view({batch, kCrossHeads, keys, -1});
  const at::Tensor weights = logits.softmax(2).view({batch, kCrossHeads * keys, -1});
  return at::bmm(weights.transpose(1, 2), v);
}

MapAttentionImpl::MapAttentionImpl(
    int64_t dim, int64_t heads, int64_t dim_head, bool cosine_sim, const UnetLayout& layout) {
  attention_ =
      add_group(*this, "fn")
          ->register_module(
              "fn", std::make_shared<AttentionImpl>(dim, heads, dim_head, cosine_sim, layout));
}

at::Tensor MapAttentionImpl::forward(const at::Tensor& x) {
  const at::Tensor out = attention_->forward(map_to_tokens(x));
  return x + tokens_to_map(out, x.size(2), x.size(3));
}

LinearAttentionImpl::LinearAttentionImpl(int64_t dim,
                                         int64_t heads,
                                         int64_t dim_head,
                                         const UnetLayout& layout)
    : heads_(heads),
      dim_head_(dim_head),
      unit_values_(layout.unit_values),
      mean_values_(layout.mean_values) {
  const int64_t inner = heads * dim_head;
  const std::vector<int64_t> gain_shape = {1, dim, 1, 1};
  const auto fn = add_group(*this, "fn");
  const NormLayout norm = {.by_max = layout.norm.by_max};  // the gain of a map's norm is always `g`
  norm_ = fn->register_module("norm", std::make_shared<GainNormImpl>(gain_shape, norm));
  to_qkv_ = fn->register_module("to_qkv", std::make_shared<TokenConvImpl>(dim, 3 * inner));
  const auto to_out = add_group(*fn, "to_out");
  to_out_ = to_out->register_module("0", std::make_shared<TokenConvImpl>(inner, dim));
  out_norm_ = to_out->register_module("1", std::make_shared<GainNormImpl>(gain_shape, norm));
}

at::Tensor LinearAttentionImpl::forward(const at::Tensor& x) {
  const int64_t batch = x.size(0);
  const double tokens = mean_values_ ? static_cast<double>(x.size(2) * x.size(3)) : 1.0;
  const at::Tensor normed = norm_->forward(map_to_tokens(x));
  // 3 x [B, N, heads, d]
  const std::vector<at::Tensor> qkv =
      to_qkv_->forward(normed).view({batch, -1, 3, heads_, dim_head_}).unbind(2);
  const at::Tensor q = qkv[0].softmax(-1).transpose(1, 2);
  const at::Tensor k = qkv[1].softmax(1).transpose(1, 2);
  const at::Tensor v = (unit_values_ ? l2_normalize(qkv[2]) : qkv[2]).transpose(1, 2);
  // The reference scales q by d^-1/2 and, since 1.4.0, both k and v by N^-1/2.
  const double scale = 1.0 / (tokens * std::sqrt(static_cast<double>(dim_head_)));
  const at::Tensor context = at::matmul(k.transpose(-1, -2), v) * scale;  // [B, heads, d, d]
  const at::Tensor out = at::matmul(q, context).transpose(1, 2).flatten(2);
  const at::Tensor projected = to_out_->forward(at::gelu(out));
  return x + tokens_to_map(out_norm_->forward(projected), x.size(2), x.size(3));
}

}  // namespace dalle2
