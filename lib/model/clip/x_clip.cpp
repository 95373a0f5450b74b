// SPDX-License-Identifier: MIT
#include "model/clip/x_clip.h"

#include <torch/torch.h>

#include <algorithm>

namespace dalle2 {

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
  transformer_ = register_module("transformer",
                                 std::make_shared<XClipTransformerImpl>(
                                     XClipTransformerShape{.width = width,
                                                           .layers = config.text_enc_depth,
                                                           .heads = config.text_heads,
                                                           .head_width = config.text_dim_head}));
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
  transformer_ = register_module("transformer",
                                 std::make_shared<XClipTransformerImpl>(
                                     XClipTransformerShape{.width = width,
                                                           .layers = config.visual_enc_depth,
                                                           .heads = config.visual_heads,
                                                           .head_width = config.visual_dim_head}));
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
