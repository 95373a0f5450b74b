// SPDX-License-Identifier: MIT
#include "model/clip/image_tower.h"

#include <torch/torch.h>

#include <cmath>
#include <string>

namespace dalle2 {
namespace {

constexpr double kMomentum = 0.1;

ClipConvNorm add_conv_norm(torch::nn::Module& parent,
                           const std::string& conv_name,
                           const std::string& norm_name,
                           const torch::nn::Conv2dOptions& options) {
  torch::nn::Conv2dOptions plain = options;
  plain.bias(false);
  return {.conv = parent.register_module(conv_name, std::make_shared<ConvLayerImpl>(plain)),
          .norm = parent.register_module(
              norm_name,
              std::make_shared<torch::nn::BatchNorm2dImpl>(
                  torch::nn::BatchNormOptions(plain.out_channels()).momentum(kMomentum)))};
}

/// @param number 1 to 3: names "conv1" and "bn1" to "conv3" and "bn3"
ClipConvNorm add_numbered(torch::nn::Module& parent,
                          int number,
                          const torch::nn::Conv2dOptions& options) {
  const std::string text = std::to_string(number);
  return add_conv_norm(parent, "conv" + text, "bn" + text, options);
}

torch::nn::Conv2dOptions kernel_of_3(int64_t in, int64_t out) {
  return torch::nn::Conv2dOptions(in, out, 3).padding(1);
}

at::Tensor averaged(const at::Tensor& x, int64_t stride) {
  return stride == 1 ? x : at::avg_pool2d(x, {stride, stride});
}

}  // namespace

ClipVitImpl::ClipVitImpl(const ClipVisionConfig& config, int64_t embed_dim, bool quick_gelu) {
  const int64_t width = config.width, tokens = config.grid() * config.grid() + 1;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  class_embedding_ = register_parameter("class_embedding", scale * torch::randn({width}));
  positional_embedding_ =
      register_parameter("positional_embedding", scale * torch::randn({tokens, width}));
  proj_ = register_parameter("proj", scale * torch::randn({width, embed_dim}));
  conv1_ = register_module(
      "conv1",
      std::make_shared<ConvLayerImpl>(torch::nn::Conv2dOptions(3, width, config.patch_size)
                                          .stride(config.patch_size)
                                          .bias(false)));
  const double eps = config.norm_kwargs.eps;
  ln_pre_ = register_module("ln_pre", std::make_shared<ClipNormImpl>(width, eps));
  transformer_ = register_module(
      "transformer",
      std::make_shared<ClipTransformerImpl>(ClipTransformerShape{.width = width,
                                                                 .layers = config.layers.at(0),
                                                                 .heads = config.heads(),
                                                                 .mlp_ratio = config.mlp_ratio,
                                                                 .quick_gelu = quick_gelu,
                                                                 .norm_eps = eps}));
  ln_post_ = register_module("ln_post", std::make_shared<ClipNormImpl>(width, eps));
}

at::Tensor ClipVitImpl::forward(const at::Tensor& images) {
  const at::Tensor patches = conv1_->forward(images.to(conv1_->weight.scalar_type()));
  const auto dtype = patches.scalar_type();
  const at::Tensor first =
      class_embedding_.to(dtype).expand({images.size(0), 1, class_embedding_.size(0)});
  const at::Tensor tokens = at::cat({first, patches.flatten(2).transpose(1, 2)}, 1) +
                            positional_embedding_.to(dtype);  // [B, N, W]
  const at::Tensor classes =
      at::arange(tokens.size(0), tokens.options().dtype(at::kLong)) * tokens.size(1);
  const at::Tensor seen =
      transformer_->forward_at(ln_pre_->forward(tokens), {.places = classes, .seen = {}});
  return ln_post_->forward(seen).matmul(proj_);
}

std::shared_ptr<ClipImageTowerImpl> make_image_tower(const ClipNetworkConfig& config) {
  if (config.vision_cfg.is_resnet()) {
    return std::make_shared<ClipResNetImpl>(config.vision_cfg, config.embed_dim);
  }
  return std::make_shared<ClipVitImpl>(config.vision_cfg, config.embed_dim, config.quick_gelu);
}

at::Tensor ClipConvNorm::forward(const at::Tensor& x, const at::Tensor& add) const {
  const at::Tensor normed = norm->forward(conv->forward(x));
  return at::relu(add.defined() ? normed + add : normed);
}

ClipBottleneckImpl::ClipBottleneckImpl(int64_t in, int64_t inner, int64_t stride)
    : stride_(stride) {
  const int64_t out = kExpansion * inner;
  first_ = add_numbered(*this, 1, torch::nn::Conv2dOptions(in, inner, 1));
  second_ = add_numbered(*this, 2, kernel_of_3(inner, inner));
  third_ = add_numbered(*this, 3, torch::nn::Conv2dOptions(inner, out, 1));
  torch::nn::init::zeros_(third_.norm->weight);
  if (stride > 1 || in != out) {
    const auto group = add_group(*this, "downsample");
    downsample_ = add_conv_norm(*group, "0", "1", torch::nn::Conv2dOptions(in, out, 1));
  }
}

at::Tensor ClipBottleneckImpl::forward(const at::Tensor& x) {
  at::Tensor residual = x;
  if (downsample_.conv) {
    residual = downsample_.norm->forward(downsample_.conv->forward(averaged(x, stride_)));
  }
  return third_.forward(averaged(second_.forward(first_.forward(x)), stride_), residual);
}

ClipAttentionPoolImpl::ClipAttentionPoolImpl(const ClipVisionConfig& config, int64_t embed_dim)
    : heads_(config.heads()) {
  const int64_t width = ClipVisionConfig::kResNetMult * config.width;
  const int64_t tokens = config.grid() * config.grid() + 1;
  const double deviation = 1 / std::sqrt(static_cast<double>(width));
  positional_embedding_ =
      register_parameter("positional_embedding", torch::randn({tokens, width}) * deviation);
  k_proj_ = register_module("k_proj", make_linear(width, width));
  q_proj_ = register_module("q_proj", make_linear(width, width));
  v_proj_ = register_module("v_proj", make_linear(width, width));
  c_proj_ = register_module("c_proj", make_linear(width, embed_dim));
  for (const auto& each : {k_proj_, q_proj_, v_proj_, c_proj_})
    torch::nn::init::normal_(each->weight, 0, deviation);
}

at::Tensor ClipAttentionPoolImpl::forward(const at::Tensor& map) {
  const at::Tensor places = map.flatten(2).transpose(1, 2);  // [B, H W, C]
  const at::Tensor tokens = at::cat({places.mean(1, /*keepdim=*/true), places}, 1) +
                            positional_embedding_.to(map.scalar_type());
  const auto by_heads = [&](const at::Tensor& x) {
    return x.unflatten(-1, {heads_, x.size(-1) / heads_}).transpose(1, 2);
  };
  const at::Tensor mixed =
      at::scaled_dot_product_attention(by_heads(q_proj_->forward(tokens.narrow(1, 0, 1))),
                                       by_heads(k_proj_->forward(tokens)),
                                       by_heads(v_proj_->forward(tokens)));
  return c_proj_->forward(mixed.transpose(1, 2).flatten(1));
}

ClipResNetImpl::ClipResNetImpl(const ClipVisionConfig& config, int64_t embed_dim) {
  const int64_t width = config.width;
  stem_.push_back(add_numbered(*this, 1, kernel_of_3(3, width / 2).stride(2)));
  stem_.push_back(add_numbered(*this, 2, kernel_of_3(width / 2, width / 2)));
  stem_.push_back(add_numbered(*this, 3, kernel_of_3(width / 2, width)));
  int64_t in = width;
  for (size_t stage = 0; stage < ClipVisionConfig::kResNetStages; ++stage) {
    const auto group = add_group(*this, "layer" + std::to_string(stage + 1));
    const int64_t inner = width << stage;
    for (int64_t number = 0; number < config.layers.at(stage); ++number) {
      const int64_t stride = stage > 0 && number == 0 ? 2 : 1;
      blocks_.push_back(group->register_module(
          std::to_string(number), std::make_shared<ClipBottleneckImpl>(in, inner, stride)));
      in = ClipBottleneckImpl::kExpansion * inner;
    }
  }
  attnpool_ =
      register_module("attnpool", std::make_shared<ClipAttentionPoolImpl>(config, embed_dim));
}

at::Tensor ClipResNetImpl::forward(const at::Tensor& images) {
  at::Tensor x = in_order_for_convolutions(images.to(stem_[0].conv->weight.scalar_type()));
  for (const ClipConvNorm& each : stem_) x = each.forward(x);
  x = averaged(x, 2);
  for (const auto& block : blocks_) x = block->forward(x);
  return attnpool_->forward(x);
}

}  // namespace dalle2
