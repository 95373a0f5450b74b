// SPDX-License-Identifier: MIT
// Image towers of a CLIP (Radford et al. 2021, arXiv 2103.00020, section 2.4). Legend: B batch, S side
// of the pictures, N tokens, W width, D width of the embeddings.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>

#include "config/clip/clip_network_config.h"
#include "model/clip/clip_transformer.h"

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

}  // namespace dalle2
