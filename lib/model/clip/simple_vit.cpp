// SPDX-License-Identifier: MIT
#include "model/clip/simple_vit.h"

#include <torch/torch.h>

#include <string>

#include "model/clip/clip_encoder.h"

namespace dalle2 {
namespace {

constexpr double kLongestWave = 10000.0;

/// Sines and cosines of the columns, then of the rows, at width / 4 frequencies.
/// @param side of the map of patches @param width a multiple of 4, more than 4 @return [side^2, width]
at::Tensor positions_2d(int64_t side, int64_t width, const at::TensorOptions& options) {
  const int64_t waves = width / 4;
  const at::Tensor powers = at::arange(waves, options) / static_cast<double>(waves - 1);
  const at::Tensor frequencies = 1.0 / at::pow(at::Scalar(kLongestWave), powers);
  const at::Tensor place = at::arange(side, options).unsqueeze(1) * frequencies;  // [side, waves]
  const at::Tensor column = place.unsqueeze(0).expand({side, side, waves});
  const at::Tensor row = place.unsqueeze(1).expand({side, side, waves});
  return at::cat({column.sin(), column.cos(), row.sin(), row.cos()}, -1).flatten(0, 1);
}

}  // namespace

SimpleVitAttentionImpl::SimpleVitAttentionImpl(const SimpleVitConfig& config)
    : heads_(config.heads) {
  const int64_t inner = config.heads * config.dim_head;
  norm_ = register_module("norm", std::make_shared<ClipNormImpl>(config.dim));
  to_qkv_ = register_module("to_qkv", make_linear(config.dim, 3 * inner, /*bias=*/false));
  to_out_ = register_module("to_out", make_linear(inner, config.dim, /*bias=*/false));
}

at::Tensor SimpleVitAttentionImpl::forward(const at::Tensor& x) {
  auto qkv = to_qkv_->forward(norm_->forward(x)).chunk(3, -1);
  for (at::Tensor& each : qkv)
    each = each.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [B, heads, N, head width]
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
  return to_out_->forward(mixed.transpose(1, 2).flatten(2));
}

SimpleVitFeedForwardImpl::SimpleVitFeedForwardImpl(const SimpleVitConfig& config) {
  const auto net = add_group(*this, "net");
  norm_ = net->register_module("0", std::make_shared<ClipNormImpl>(config.dim));
  in_ = net->register_module("1", make_linear(config.dim, config.mlp_dim));
  out_ = net->register_module("3", make_linear(config.mlp_dim, config.dim));
}

at::Tensor SimpleVitFeedForwardImpl::forward(const at::Tensor& x) {
  return out_->forward(at::gelu(in_->forward(norm_->forward(x))));
}

SimpleVitImpl::SimpleVitImpl(const SimpleVitConfig& config) : patch_size_(config.patch_size) {
  const int64_t patch_width = config.channels * patch_size_ * patch_size_;
  const auto embedding = add_group(*this, "to_patch_embedding");
  patch_norm_ = embedding->register_module("1", std::make_shared<ClipNormImpl>(patch_width));
  to_tokens_ = embedding->register_module("2", make_linear(patch_width, config.dim));
  token_norm_ = embedding->register_module("3", std::make_shared<ClipNormImpl>(config.dim));
  const auto transformer = add_group(*this, "transformer");
  norm_ = transformer->register_module("norm", std::make_shared<ClipNormImpl>(config.dim));
  const auto layers = add_group(*transformer, "layers");
  for (int64_t number = 0; number < config.depth; ++number) {
    const auto layer = add_group(*layers, std::to_string(number));
    layers_.push_back(
        {.attention = layer->register_module("0", std::make_shared<SimpleVitAttentionImpl>(config)),
         .feed_forward =
             layer->register_module("1", std::make_shared<SimpleVitFeedForwardImpl>(config))});
  }
  register_module("linear_head", make_linear(config.dim, config.num_classes));
}

at::Tensor SimpleVitImpl::forward(const at::Tensor& images) {
  const at::Tensor patches = patch_norm_->forward(patch_values(images, patch_size_));
  at::Tensor x = token_norm_->forward(to_tokens_->forward(patches));  // [B, N, W]
  x = x + positions_2d(images.size(-1) / patch_size_, x.size(-1), images.options());
  for (const Layer& layer : layers_) {
    x = layer.attention->forward(x) + x;
    x = layer.feed_forward->forward(x) + x;
  }
  return norm_->forward(x);
}

}  // namespace dalle2
