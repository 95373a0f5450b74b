// SPDX-License-Identifier: MIT
#include "model/clip/clip_transformer.h"

#include <torch/torch.h>

#include <optional>
#include <string>

#include "kernels/half_weights.h"
#include "model/frozen_weight.h"

namespace dalle2 {
namespace {

constexpr double kQuickGeluSlope = 1.702;

}  // namespace

at::Tensor ChosenTokens::of(const at::Tensor& x) const {
  return x.flatten(0, 1).index_select(0, places).unsqueeze(1);
}

ClipNormImpl::ClipNormImpl(int64_t width, double eps)
    : torch::nn::LayerNormImpl(torch::nn::LayerNormOptions({width}).eps(eps)) {}

at::Tensor ClipNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x.to(weight.scalar_type()), {x.size(-1)}, weight, bias, options.eps())
      .to(x.scalar_type());
}

ClipAttentionImpl::ClipAttentionImpl(const ClipTransformerShape& shape)
    : heads_(shape.heads), causal_(shape.causal) {
  in_proj_weight =
      register_parameter("in_proj_weight", torch::empty({3 * shape.width, shape.width}));
  in_proj_bias = register_parameter("in_proj_bias", torch::zeros({3 * shape.width}));
  out_proj = register_module("out_proj", make_linear(shape.width, shape.width));
  const torch::NoGradGuard no_grad;
  torch::nn::init::xavier_uniform_(in_proj_weight);
  out_proj->bias.zero_();
}

at::Tensor ClipAttentionImpl::by_heads(const at::Tensor& x) const {
  return x.unflatten(-1, {heads_, x.size(-1) / heads_}).transpose(1, 2);
}

at::Tensor ClipAttentionImpl::joined(const at::Tensor& mixed) {
  return out_proj->forward(mixed.transpose(1, 2).flatten(2));
}

at::Tensor ClipAttentionImpl::forward(const at::Tensor& x) {
  // Cut along the last dimension, so that the gradient of the three is joined in one copy.
  const auto qkv = weighted_linear(x, in_proj_weight, in_proj_bias).chunk(3, -1);
  return joined(at::scaled_dot_product_attention(
      by_heads(qkv[0]), by_heads(qkv[1]), by_heads(qkv[2]), {}, /*dropout_p=*/0.0, causal_));
}

at::Tensor ClipAttentionImpl::forward_at(const at::Tensor& x, const ChosenTokens& chosen) {
  const int64_t width = x.size(-1);
  const at::Tensor weight = in_half(in_proj_weight), bias = in_half(in_proj_bias);
  const at::Tensor q =
      weighted_linear(chosen.of(x), weight.narrow(0, 0, width), bias.narrow(0, 0, width));
  const auto kv =
      weighted_linear(x, weight.narrow(0, width, 2 * width), bias.narrow(0, width, 2 * width))
          .chunk(2, -1);
  std::optional<at::Tensor> seen;
  if (chosen.seen.defined()) seen = chosen.seen;
  return joined(
      at::scaled_dot_product_attention(by_heads(q), by_heads(kv[0]), by_heads(kv[1]), seen));
}

ClipBlockImpl::ClipBlockImpl(const ClipTransformerShape& shape) : quick_gelu_(shape.quick_gelu) {
  const auto inner = static_cast<int64_t>(static_cast<double>(shape.width) * shape.mlp_ratio);
  ln_1_ = register_module("ln_1", std::make_shared<ClipNormImpl>(shape.width, shape.norm_eps));
  attn = register_module("attn", std::make_shared<ClipAttentionImpl>(shape));
  ln_2_ = register_module("ln_2", std::make_shared<ClipNormImpl>(shape.width, shape.norm_eps));
  const auto mlp = add_group(*this, "mlp");
  c_fc = mlp->register_module("c_fc", make_linear(shape.width, inner));
  c_proj = mlp->register_module("c_proj", make_linear(inner, shape.width));
}

at::Tensor ClipBlockImpl::with_feed_forward(const at::Tensor& h) {
  const at::Tensor wide = c_fc->forward(ln_2_->forward(h));
  const at::Tensor active =
      quick_gelu_ ? wide * at::sigmoid(kQuickGeluSlope * wide) : at::gelu(wide);
  return h + c_proj->forward(active);
}

at::Tensor ClipBlockImpl::forward(const at::Tensor& x) {
  return with_feed_forward(x + attn->forward(ln_1_->forward(x)));
}

at::Tensor ClipBlockImpl::forward_at(const at::Tensor& x, const ChosenTokens& chosen) {
  return with_feed_forward(chosen.of(x) + attn->forward_at(ln_1_->forward(x), chosen));
}

ClipTransformerImpl::ClipTransformerImpl(const ClipTransformerShape& shape) {
  const auto resblocks = add_group(*this, "resblocks");
  for (int64_t number = 0; number < shape.layers; ++number) {
    blocks_.push_back(
        resblocks->register_module(std::to_string(number), std::make_shared<ClipBlockImpl>(shape)));
  }
}

at::Tensor ClipTransformerImpl::forward_at(at::Tensor x, const ChosenTokens& chosen) {
  for (size_t i = 0; i + 1 < blocks_.size(); ++i) x = blocks_[i]->forward(x);
  return blocks_.back()->forward_at(x, chosen).squeeze(1);
}

at::Tensor ClipTransformerImpl::forward(at::Tensor x) {
  for (const auto& block : blocks_) x = block->forward(x);
  return x;
}

}  // namespace dalle2
