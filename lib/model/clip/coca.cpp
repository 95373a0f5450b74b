// SPDX-License-Identifier: MIT
#include "model/clip/coca.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace dalle2 {

CocaImpl::CocaImpl(const CocaConfig& config) : config_(config) {
  const int64_t width = config_.dim;
  const CocaLayerShape shape{.width = width,
                             .heads = config_.heads,
                             .head_width = config_.dim_head,
                             .forward_mult = config_.ff_mult};
  text_cls_token_ = register_parameter("text_cls_token", torch::randn({width}));
  img_queries_ =
      register_parameter("img_queries", torch::randn({config_.num_img_queries + 1, width}));
  register_parameter("temperature", torch::ones({1}));  // of the loss
  token_emb_ = register_module("token_emb", torch::nn::Embedding(config_.num_tokens, width));
  vit_ = add_group(*this, "img_encoder")
             ->register_module("vit", std::make_shared<SimpleVitImpl>(*config_.img_encoder));
  img_attn_pool_ = register_module(
      "img_attn_pool",
      std::make_shared<CocaCrossAttentionImpl>(shape, config_.image_width(), CrossKind::kPooling));
  img_attn_pool_norm_ =
      register_module("img_attn_pool_norm", std::make_shared<GammaNormImpl>(width));
  text_cls_norm_ = register_module("text_cls_norm", std::make_shared<GammaNormImpl>(width));
  const auto to_latents = [&](const char* name) {
    return add_group(*this, name)
        ->register_module("to_latents", make_linear(width, config_.latent_width(), /*bias=*/false));
  };
  img_to_latents_ = to_latents("img_to_latents");
  text_to_latents_ = to_latents("text_to_latents");
  add_text_layers(shape);
}

void CocaImpl::add_text_layers(const CocaLayerShape& shape) {
  const auto unimodal = add_group(*this, "unimodal_layers");
  for (int64_t number = 0; number < config_.unimodal_depth; ++number) {
    unimodal_layers_.push_back(
        add_group(*unimodal, std::to_string(number))
            ->register_module("fn", std::make_shared<ParallelBlockImpl>(shape)));
  }
  // Of captioning, as the logits: they are here for what reads our checkpoints.
  const auto multimodal = add_group(*this, "multimodal_layers");
  for (int64_t number = 0; number < config_.multimodal_depth; ++number) {
    const auto layer = add_group(*multimodal, std::to_string(number));
    add_group(*layer, "0")->register_module("fn", std::make_shared<ParallelBlockImpl>(shape));
    add_group(*layer, "1")
        ->register_module(
            "fn",
            std::make_shared<CocaCrossAttentionImpl>(shape, shape.width, CrossKind::kMultimodal));
  }
  const auto logits = add_group(*this, "to_logits");
  logits->register_module("0", std::make_shared<GammaNormImpl>(shape.width));
  // The table of tokens again. As a buffer, for Python counts a parameter with two names once.
  add_group(*logits, "1")->register_buffer("weight", token_emb_->weight);
}

at::Tensor CocaImpl::embed_image(const at::Tensor& images) {
  const at::Tensor tokens = vit_->forward(resized(images));  // [B, N, image width]
  const at::Tensor query =
      img_queries_.narrow(0, 0, 1).expand({images.size(0), 1, config_.dim});  // the others caption
  const at::Tensor pooled = img_attn_pool_->forward(query, tokens).squeeze(1);
  return img_attn_pool_norm_->forward(pooled).to(at::kFloat);
}

at::Tensor CocaImpl::seen_by(const at::Tensor& tokens) const {
  const int64_t length = tokens.size(1);
  const at::Tensor earlier =
      at::ones({length, length + 1}, tokens.options().dtype(at::kBool)).tril();
  const at::Tensor by_class =
      at::constant_pad_nd(tokens != config_.pad_id, {0, 1}, true).unsqueeze(1);  // [B, 1, L + 1]
  return at::cat({earlier.expand({tokens.size(0), -1, -1}), by_class}, 1).unsqueeze(1);
}

ClipTexts CocaImpl::embed_text(const at::Tensor& tokens) {
  const at::Tensor given = tokens.narrow(1, 0, std::min(tokens.size(1), max_text_len()));
  const at::Tensor last = text_cls_token_.expand({given.size(0), 1, config_.dim});
  const at::Tensor seen = seen_by(given);
  at::Tensor x = at::cat({token_emb_->forward(given), last}, 1);  // [B, L + 1, W]
  for (const auto& layer : unimodal_layers_) x = layer->forward(x, seen) + x;
  const int64_t length = given.size(1);
  const at::Tensor mask = given != 0;
  return {
      .embed = text_cls_norm_->forward(x.select(1, length)).to(at::kFloat),
      .encodings =
          x.narrow(1, 0, length).to(at::kFloat).masked_fill(mask.logical_not().unsqueeze(-1), 0),
      .mask = mask};
}

at::Tensor CocaImpl::similarity(const at::Tensor& images, const at::Tensor& texts) {
  const auto latents = [](LinearLayerImpl& layer, const at::Tensor& embeds) {
    return l2_normalize(layer.forward(embeds).to(at::kFloat));
  };
  return (latents(*img_to_latents_, images) * latents(*text_to_latents_, texts)).sum(-1);
}

}  // namespace dalle2
