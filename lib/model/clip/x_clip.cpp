// SPDX-License-Identifier: MIT
#include "model/clip/x_clip.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace dalle2 {
namespace {

constexpr int64_t kForwardMult = 4;
constexpr double kRotaryBase = 10000.0;

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

XClipTextTowerImpl::XClipTextTowerImpl(const XClipConfig& config) {
  const int64_t width = config.dim_text;
  cls_token_ = register_parameter("cls_token", torch::randn({width}));
  token_emb_ = register_module("token_emb", torch::nn::Embedding(config.token_rows(), width));
  if (config.text_rotary_pos_emb) {
    rotary_pos_emb_ =
        register_module("rotary_pos_emb", std::make_shared<HalvesRotaryImpl>(config.rotary_dim()));
  } else {
    abs_pos_emb_ = register_module("abs_pos_emb", torch::nn::Embedding(config.text_seq_len, width));
  }
  const XClipTransformerShape shape = {
      width, config.text_enc_depth, config.text_heads, config.text_dim_head};
  transformer_ = register_module("transformer", std::make_shared<XClipTransformerImpl>(shape));
}

at::Tensor XClipTextTowerImpl::forward(const at::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  at::Tensor x = token_emb_->forward(tokens);  // [B, L, T]
  if (!abs_pos_emb_.is_empty()) x = x + abs_pos_emb_->weight.narrow(0, 0, length);
  HalvesRotaryImpl::Angles angles;
  if (rotary_pos_emb_) angles = rotary_pos_emb_->angles(1 + length);
  const at::Tensor first = cls_token_.expand({x.size(0), 1, cls_token_.size(0)});
  return transformer_->forward(at::cat({first, x}, 1), angles);
}

XClipImageTowerImpl::XClipImageTowerImpl(const XClipConfig& config)
    : patch_size_(config.visual_patch_size) {
  const int64_t width = config.dim_image;
  to_tokens_ =
      add_group(*this, "to_tokens")
          ->register_module("1", make_linear(config.channels * patch_size_ * patch_size_, width));
  pos_emb_ = register_module("pos_emb", torch::nn::Embedding(config.num_patches(), width));
  const XClipTransformerShape shape = {
      width, config.visual_enc_depth, config.visual_heads, config.visual_dim_head};
  transformer_ = register_module("transformer", std::make_shared<XClipTransformerImpl>(shape));
  to_cls_tokens_ = add_group(*this, "to_cls_tokens")
                       ->register_module("1", make_linear(width, width, /*bias=*/false));
}

at::Tensor XClipImageTowerImpl::forward(const at::Tensor& images) {
  const at::Tensor tokens =
      to_tokens_->forward(patch_values(images, patch_size_)) + pos_emb_->weight;  // [B, N, I]
  return to_cls_tokens_->forward(transformer_->forward(tokens).mean(1));
}

XClipImpl::XClipImpl(const XClipConfig& config) : config_(config) {
  // Of the losses, as the two projections at the end: they are here for what reads our checkpoints.
  register_parameter("temperature", torch::ones({}));
  text_transformer_ =
      register_module("text_transformer", std::make_shared<XClipTextTowerImpl>(config_));
  visual_transformer_ =
      register_module("visual_transformer", std::make_shared<XClipImageTowerImpl>(config_));
  const auto projection = [&](const char* name, int64_t width) {
    return register_module(name, make_linear(width, config_.dim_latent, /*bias=*/false));
  };
  to_text_latent_ = projection("to_text_latent", config_.dim_text);
  to_visual_latent_ = projection("to_visual_latent", config_.dim_image);
  projection("to_text_latent_extra", config_.dim_text);
  projection("to_visual_latent_extra", config_.dim_image);
}

at::Tensor XClipImpl::embed_image(const at::Tensor& images) {
  const at::Tensor token = visual_transformer_->forward(resized(images));
  return l2_normalize(to_visual_latent_->forward(token).to(at::kFloat));
}

ClipTexts XClipImpl::embed_text(const at::Tensor& tokens) {
  const at::Tensor given = tokens.narrow(1, 0, std::min(tokens.size(1), max_text_len()));
  const at::Tensor seen = text_transformer_->forward(given);  // [B, 1 + L, T]
  const at::Tensor mask = given != 0;
  return {.embed = l2_normalize(to_text_latent_->forward(seen.select(1, 0)).to(at::kFloat)),
          .encodings = seen.narrow(1, 1, given.size(1))
                           .to(at::kFloat)
                           .masked_fill(mask.logical_not().unsqueeze(-1), 0),
          .mask = mask};
}

}  // namespace dalle2
