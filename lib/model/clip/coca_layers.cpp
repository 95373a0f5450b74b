// SPDX-License-Identifier: MIT
#include "model/clip/coca_layers.h"

#include <torch/torch.h>

#include <numeric>
#include <optional>

#include "base/error.h"

namespace dalle2 {
namespace {

constexpr double kNormEps = 1e-5;

/// [B, N, heads D] -> [B, heads, N, D]
at::Tensor by_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

/// Attention of many heads to one key and value.
/// @param q [B, heads, N, D] @param k [B, M, D] @param v [B, M, D] @param seen [B, 1, N, M] bool, or none
/// @return [B, N, heads D]
at::Tensor attend_shared(const at::Tensor& q,
                         const at::Tensor& k,
                         const at::Tensor& v,
                         const std::optional<at::Tensor>& seen) {
  const auto shared = [&](const at::Tensor& one) {
    return one.unsqueeze(1).expand({-1, q.size(1), -1, -1});
  };
  return at::scaled_dot_product_attention(q, shared(k), shared(v), seen).transpose(1, 2).flatten(2);
}

std::shared_ptr<LinearLayerImpl> make_bare_linear(int64_t in, int64_t out) {
  return make_linear(in, out, /*bias=*/false);
}

}  // namespace

GammaNormImpl::GammaNormImpl(int64_t width) {
  gamma_ = register_parameter("gamma", torch::ones({width}));
  beta_ = register_buffer("beta", torch::zeros({width}));
}

at::Tensor GammaNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x.to(gamma_.scalar_type()), {x.size(-1)}, gamma_, beta_, kNormEps)
      .to(x.scalar_type());
}

ParallelBlockImpl::ParallelBlockImpl(const CocaLayerShape& shape)
    : heads_(shape.heads),
      widths_{shape.heads * shape.head_width,
              shape.head_width,
              shape.head_width,
              2 * shape.forward_mult * shape.width} {
  norm_ = register_module("norm", std::make_shared<GammaNormImpl>(shape.width));
  rotary_emb_ = register_module("rotary_emb", std::make_shared<HalvesRotaryImpl>(shape.head_width));
  const int64_t all = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  fused_attn_ff_proj_ = register_module("fused_attn_ff_proj", make_bare_linear(shape.width, all));
  attn_out_ = register_module("attn_out", make_bare_linear(widths_[0], shape.width));
  ff_out_ = add_group(*this, "ff_out")
                ->register_module("1", make_bare_linear(widths_[3] / 2, shape.width));
}

at::Tensor ParallelBlockImpl::forward(const at::Tensor& x, const at::Tensor& seen) {
  const auto parts = fused_attn_ff_proj_->forward(norm_->forward(x)).split_with_sizes(widths_, -1);
  const HalvesRotaryImpl::Angles angles = rotary_emb_->angles(x.size(1));
  const at::Tensor mixed =
      attend_shared(HalvesRotaryImpl::rotate(by_heads(parts[0], heads_), angles),
                    HalvesRotaryImpl::rotate(parts[1], angles),
                    parts[2],
                    seen);
  const auto halves = parts[3].chunk(2, -1);
  return attn_out_->forward(mixed) + ff_out_->forward(at::silu(halves[1]) * halves[0]);
}

CocaCrossAttentionImpl::CocaCrossAttentionImpl(const CocaLayerShape& shape,
                                               int64_t context_width,
                                               CrossKind kind)
    : heads_(shape.heads) {
  const int64_t inner = shape.heads * shape.head_width;
  norm_ = register_module("norm", std::make_shared<GammaNormImpl>(shape.width));
  if (kind == CrossKind::kPooling)
    context_norm_ = register_module("context_norm", std::make_shared<GammaNormImpl>(context_width));
  to_q_ = register_module("to_q", make_bare_linear(shape.width, inner));
  to_kv_ = register_module("to_kv", make_bare_linear(context_width, 2 * shape.head_width));
  to_out_ = register_module("to_out", make_bare_linear(inner, shape.width));
  if (kind == CrossKind::kMultimodal) {
    const auto ff = add_group(*this, "ff");
    const int64_t wide = shape.forward_mult * shape.width;
    ff->register_module("0", make_bare_linear(shape.width, 2 * wide));
    ff->register_module("2", make_bare_linear(wide, shape.width));
  }
}

at::Tensor CocaCrossAttentionImpl::forward(const at::Tensor& x, const at::Tensor& context) {
  D2_CHECK(context_norm_ != nullptr, "a cross attention of captioning has no forward pass");
  const auto kv = to_kv_->forward(context_norm_->forward(context)).chunk(2, -1);
  const at::Tensor q = by_heads(to_q_->forward(norm_->forward(x)), heads_);
  return to_out_->forward(attend_shared(q, kv[0], kv[1], std::nullopt));
}

}  // namespace dalle2
