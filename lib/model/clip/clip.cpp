// SPDX-License-Identifier: MIT
#include "model/clip/clip.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "model/layers.h"

namespace dalle2 {
namespace {

constexpr double kTokenDeviation = 0.02, kPositionDeviation = 0.01;

at::Tensor channel_values(const std::vector<double>& values) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(at::kFloat).view({3, 1, 1});
}

/// Where each sample's tokens begin, counted through all samples. [B]
at::Tensor first_places(const at::Tensor& tokens) {
  return at::arange(tokens.size(0), tokens.options()) * tokens.size(1);
}

}  // namespace

ClipImpl::ClipImpl(const ClipNetworkConfig& config)
    : config_(config),
      image_mean_(channel_values(config.image_mean)),
      image_std_(channel_values(config.image_std)) {
  const ClipTextConfig& text = config_.text_cfg;
  positional_embedding_ =
      register_parameter("positional_embedding", torch::empty({text.context_length, text.width}));
  text_projection_ =
      register_parameter("text_projection", torch::empty({text.width, config_.embed_dim}));
  logit_scale = register_parameter("logit_scale", torch::full({}, config_.init_logit_scale));
  visual_ = register_module("visual", make_image_tower(config_));
  transformer_ = register_module("transformer",
                                 std::make_shared<ClipTransformerImpl>(
                                     ClipTransformerShape{.width = text.width,
                                                          .layers = text.layers,
                                                          .heads = text.heads,
                                                          .mlp_ratio = text.mlp_ratio,
                                                          .quick_gelu = config_.quick_gelu,
                                                          .causal = true,
                                                          .norm_eps = text.norm_kwargs.eps}));
  token_embedding_ =
      register_module("token_embedding", torch::nn::Embedding(text.vocab_size, text.width));
  ln_final_ =
      register_module("ln_final", std::make_shared<ClipNormImpl>(text.width, text.norm_kwargs.eps));
  init_text_weights();
}

void ClipImpl::init_text_weights() {
  const torch::NoGradGuard no_grad;
  const auto width = static_cast<double>(config_.text_cfg.width);
  const auto layers = static_cast<double>(config_.text_cfg.layers);
  const double attention = 1 / std::sqrt(width), inner = 1 / std::sqrt(2 * width);
  const double projection = attention / std::sqrt(2 * layers);
  torch::nn::init::normal_(token_embedding_->weight, 0, kTokenDeviation);
  torch::nn::init::normal_(positional_embedding_, 0, kPositionDeviation);
  for (const auto& block : transformer_->blocks()) {
    torch::nn::init::normal_(block->attn->in_proj_weight, 0, attention);
    torch::nn::init::normal_(block->attn->out_proj->weight, 0, projection);
    torch::nn::init::normal_(block->c_fc->weight, 0, inner);
    torch::nn::init::normal_(block->c_proj->weight, 0, projection);
  }
  torch::nn::init::normal_(text_projection_, 0, attention);
}

at::Tensor ClipImpl::normalized(const at::Tensor& images) {
  if (image_mean_.device() != images.device()) {
    image_mean_ = image_mean_.to(images.device());
    image_std_ = image_std_.to(images.device());
  }
  return (images - image_mean_) / image_std_;
}

at::Tensor ClipImpl::image_features(const at::Tensor& images) {
  return visual_->forward(normalized(images));
}

at::Tensor trimmed_tokens(const at::Tensor& tokens) {
  D2_CHECK(tokens.device().is_cpu(), "tokens have to be on the CPU to be trimmed");
  if (tokens.size(0) == 0) return tokens;
  return tokens.narrow(1, 0, tokens.argmax(-1).max().item<int64_t>() + 1);
}

at::Tensor ClipImpl::embedded_tokens(const at::Tensor& tokens) {
  if (tokens.dim() != 2 || tokens.size(1) < 1 || tokens.size(1) > max_text_len()) {
    throw DataError("CLIP got text tokens of shape {}: expected [B, L] with L up to {}",
                    shape_text(tokens.sizes()),
                    max_text_len());
  }
  const auto dtype = text_projection_.scalar_type();
  return token_embedding_->forward(tokens).to(dtype) +
         positional_embedding_.narrow(0, 0, tokens.size(1)).to(dtype);
}

at::Tensor ClipImpl::text_features(const at::Tensor& tokens) {
  const at::Tensor kept = tokens.device().is_cpu() ? trimmed_tokens(tokens) : tokens;
  const at::Tensor x = embedded_tokens(kept);  // [B, L, W]
  const at::Tensor ends = kept.argmax(-1, /*keepdim=*/true);
  const at::Tensor places = at::arange(kept.size(1), kept.options());
  const ChosenTokens chosen = {.places = first_places(kept) + ends.squeeze(1),
                               .seen = (places <= ends).unsqueeze(1).unsqueeze(1)};
  return ln_final_->forward(transformer_->forward_at(x, chosen)).matmul(text_projection_);
}

at::Tensor ClipImpl::embed_image(const at::Tensor& images) {
  return l2_normalize(image_features(resized(images)).to(at::kFloat));
}

ClipTexts ClipImpl::embed_text(const at::Tensor& tokens) {
  const at::Tensor given = tokens.narrow(1, 0, std::min(tokens.size(1), max_text_len()));
  const int64_t end = config_.text_cfg.end_token();
  // What follows the ends of all texts is masked, and no token before it sees it.
  const bool trims = given.device().is_cpu() && (given == end).any(-1).all().item<bool>();
  const at::Tensor kept = trims ? trimmed_tokens(given) : given;
  const int64_t trimmed = given.size(1) - kept.size(1);
  const at::Tensor encodings =
      ln_final_->forward(transformer_->forward(embedded_tokens(kept)));  // [B, L, W]
  const ChosenTokens chosen = {.places = first_places(kept) + kept.argmax(-1), .seen = {}};
  const at::Tensor is_end = kept == end;
  const at::Tensor ended_before = is_end.cumsum(-1) - is_end.to(at::kLong);
  const at::Tensor mask = (ended_before == 0) & (kept != 0);
  return {.embed =
              l2_normalize(chosen.of(encodings).squeeze(1).matmul(text_projection_).to(at::kFloat)),
          .encodings = at::constant_pad_nd(
              encodings.to(at::kFloat).masked_fill(~mask.unsqueeze(-1), 0), {0, 0, 0, trimmed}),
          .mask = at::constant_pad_nd(mask, {0, trimmed}, false)};
}

at::Tensor pair_features(const at::Tensor& images, const at::Tensor& texts) {
  return l2_normalize(at::stack({images.to(at::kFloat), texts.to(at::kFloat)}, 1));
}

at::Tensor contrastive_loss(const at::Tensor& pairs, const at::Tensor& logit_scale) {
  const at::Tensor logits =
      logit_scale.exp() * pairs.select(1, 0).matmul(pairs.select(1, 1).t());  // [B, B]
  const at::Tensor own = at::arange(pairs.size(0), logits.options().dtype(at::kLong));
  return (at::cross_entropy_loss(logits, own) + at::cross_entropy_loss(logits.t(), own)) / 2;
}

}  // namespace dalle2
