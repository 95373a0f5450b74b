// SPDX-License-Identifier: MIT
// Image towers of a CLIP (Radford et al. 2021, arXiv 2103.00020, section 2.4). Legend: B batch, S side
// of the pictures, N tokens, W width, C channels, H W pixels, D width of the embeddings.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/clip/clip_network_config.h"
#include "model/clip/clip_transformer.h"
#include "model/layers.h"

namespace dalle2 {

class ClipImageTowerImpl : public torch::nn::Module {
 public:
  /// @param images [B, 3, S, S], normalised @return [B, D]
  virtual at::Tensor forward(const at::Tensor& images) = 0;
};

/// A vision transformer; the embedding is that of a class token. Keys `conv1.weight`,
/// `class_embedding`, `positional_embedding`, `ln_pre.*`, `transformer.*`, `ln_post.*`, `proj`.
class ClipVitImpl : public ClipImageTowerImpl {
 public:
  ClipVitImpl(const ClipVisionConfig& config, int64_t embed_dim, bool quick_gelu);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  at::Tensor class_embedding_;       // [W]
  at::Tensor positional_embedding_;  // [N, W], the class token first
  at::Tensor proj_;                  // [W, D]
  std::shared_ptr<ConvLayerImpl> conv1_;
  std::shared_ptr<ClipNormImpl> ln_pre_, ln_post_;
  std::shared_ptr<ClipTransformerImpl> transformer_;
};

std::shared_ptr<ClipImageTowerImpl> make_image_tower(const ClipNetworkConfig& config);

/// A convolution without bias, its batch norm, and a ReLU.
struct ClipConvNorm {
  std::shared_ptr<ConvLayerImpl> conv;
  std::shared_ptr<torch::nn::BatchNorm2dImpl> norm;
  /// @param add to the norm's output before the ReLU, or undefined
  at::Tensor forward(const at::Tensor& x, const at::Tensor& add = {}) const;
};

/// Three convolutions around a bottleneck, with a residual; keys `conv1` `bn1` to `conv3` `bn3`,
/// `downsample.0`, `downsample.1`.
class ClipBottleneckImpl : public torch::nn::Module {
 public:
  /// Channels that come out for each inside.
  static constexpr int64_t kExpansion = 4;
  ClipBottleneckImpl(int64_t in, int64_t inner, int64_t stride);
  /// [B, in, H, W] -> [B, 4 inner, H / stride, W / stride]
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t stride_;
  ClipConvNorm first_, second_, third_;
  ClipConvNorm downsample_;  // empty: the residual is the input
};

/// The mean of a map looks at the map, and at itself; keys `positional_embedding`, `q_proj`, `k_proj`,
/// `v_proj`, `c_proj`.
class ClipAttentionPoolImpl : public torch::nn::Module {
 public:
  ClipAttentionPoolImpl(const ClipVisionConfig& config, int64_t embed_dim);
  /// [B, C, H, W] -> [B, D]
  at::Tensor forward(const at::Tensor& map);

 private:
  int64_t heads_;
  at::Tensor positional_embedding_;  // [1 + H W, C]
  std::shared_ptr<LinearLayerImpl> q_proj_, k_proj_, v_proj_, c_proj_;
};

/// A modified ResNet: three convolutions at the start, averages instead of strides, attention instead of
/// the last average. Keys `conv1` `bn1` to `conv3` `bn3`, `layer1` to `layer4`, `attnpool`.
class ClipResNetImpl : public ClipImageTowerImpl {
 public:
  ClipResNetImpl(const ClipVisionConfig& config, int64_t embed_dim);
  at::Tensor forward(const at::Tensor& images) override;

 private:
  std::vector<ClipConvNorm> stem_;
  std::vector<std::shared_ptr<ClipBottleneckImpl>> blocks_;
  std::shared_ptr<ClipAttentionPoolImpl> attnpool_;
};

}  // namespace dalle2
