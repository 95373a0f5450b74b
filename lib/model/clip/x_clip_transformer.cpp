// SPDX-License-Identifier: MIT
#include "model/clip/x_clip_transformer.h"

#include <torch/torch.h>

#include <string>

namespace dalle2 {
namespace {

constexpr int64_t kForwardMult = 4;
constexpr double kRotaryBase = 10000.0;

std::shared_ptr<GainNormImpl> make_norm(int64_t width) {
  return std::make_shared<GainNormImpl>(std::vector<int64_t>{width});
}

}  // namespace

HalvesRotaryImpl::HalvesRotaryImpl(int64_t dim) {
  const at::Tensor powers = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  inv_freq_ = register_buffer("inv_freq", 1.0 / at::pow(at::Scalar(kRotaryBase), powers));
}

HalvesRotaryImpl::Angles HalvesRotaryImpl::angles(int64_t tokens) const {
  const at::Tensor angles =
      at::arange(tokens, inv_freq_.options()).unsqueeze(1) * inv_freq_.unsqueeze(0);
  return {angles.cos(), angles.sin()};
}

at::Tensor HalvesRotaryImpl::rotate(const at::Tensor& x, const Angles& angles) {
  const int64_t half = angles.cos.size(1);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({(a * angles.cos - b * angles.sin).to(x.scalar_type()),
                  (b * angles.cos + a * angles.sin).to(x.scalar_type()),
                  x.narrow(-1, 2 * half, x.size(-1) - 2 * half)},
                 -1);
}

XClipAttentionImpl::XClipAttentionImpl(const XClipTransformerShape& shape) : heads_(shape.heads) {
  const int64_t inner = shape.heads * shape.head_width;
  to_qkv_ = register_module("to_qkv", make_linear(shape.width, 3 * inner, /*bias=*/false));
  to_out_ = register_module("to_out", std::make_shared<AttentionOutImpl>(inner, shape.width));
}

at::Tensor XClipAttentionImpl::forward(const at::Tensor& x,
                                       const HalvesRotaryImpl::Angles& angles) {
  auto qkv = to_qkv_->forward(x).chunk(3, -1);
  for (at::Tensor& each : qkv) {
    each = each.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [B, heads, N, head width]
    if (angles.cos.defined()) each = HalvesRotaryImpl::rotate(each, angles);
  }
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
  return to_out_->forward(mixed.transpose(1, 2).flatten(2));
}

XClipFeedForwardImpl::XClipFeedForwardImpl(int64_t width) {
  const int64_t inner = kForwardMult * width;
  const auto net = add_group(*this, "net");
  in_ = net->register_module("0", make_linear(width, 2 * inner, /*bias=*/false));
  norm_ = net->register_module("2", make_norm(inner));
  out_ = net->register_module("4", make_linear(inner, width, /*bias=*/false));
}

at::Tensor XClipFeedForwardImpl::forward(const at::Tensor& x) {
  const auto halves = in_->forward(x).chunk(2, -1);
  return out_->forward(norm_->forward(halves[0] * at::gelu(halves[1])));
}

XClipTransformerImpl::XClipTransformerImpl(const XClipTransformerShape& shape) {
  const auto layers = add_group(*this, "layers");
  for (int64_t number = 0; number < shape.layers; ++number) {
    const auto layer = add_group(*layers, std::to_string(number));
    const auto attention = add_group(*layer, "0"), feed_forward = add_group(*layer, "1");
    layers_.push_back(
        {.attention_norm = attention->register_module("norm", make_norm(shape.width)),
         .forward_norm = feed_forward->register_module("norm", make_norm(shape.width)),
         .attention = attention->register_module("fn", std::make_shared<XClipAttentionImpl>(shape)),
         .feed_forward = feed_forward->register_module(
             "fn", std::make_shared<XClipFeedForwardImpl>(shape.width))});
  }
  norm_in_ = register_module("norm_in", make_norm(shape.width));
  norm_out_ = register_module("norm_out", make_norm(shape.width));
}

at::Tensor XClipTransformerImpl::forward(const at::Tensor& tokens,
                                         const HalvesRotaryImpl::Angles& angles) {
  at::Tensor x = norm_in_->forward(tokens);
  for (const Layer& layer : layers_) {
    x = layer.attention->forward(layer.attention_norm->forward(x), angles) + x;
    x = layer.feed_forward->forward(layer.forward_norm->forward(x)) + x;
  }
  return norm_out_->forward(x);
}

}  // namespace dalle2
