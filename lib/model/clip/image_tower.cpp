// SPDX-License-Identifier: MIT
#include "model/clip/image_tower.h"

#include <torch/torch.h>

#include <cmath>

#include "model/clip/clip_resnet.h"

namespace dalle2 {

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
  ln_pre_ = register_module("ln_pre", std::make_shared<ClipNormImpl>(width));
  transformer_ = register_module(
      "transformer",
      std::make_shared<ClipTransformerImpl>(ClipTransformerShape{.width = width,
                                                                 .layers = config.layers.at(0),
                                                                 .heads = config.heads(),
                                                                 .mlp_ratio = config.mlp_ratio,
                                                                 .quick_gelu = quick_gelu}));
  ln_post_ = register_module("ln_post", std::make_shared<ClipNormImpl>(width));
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

}  // namespace dalle2
