// SPDX-License-Identifier: MIT
// The vision transformer SimpleViT of vit-pytorch (Beyer et al. 2022, arXiv 2205.01580) up to the norm
// that ends its transformer, as its Extractor returns it. Names of parameters are vit-pytorch's.
// Legend: B batch, S side of the pictures, N tokens, W width.
#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "config/clip/coca_config.h"
#include "model/clip/clip_transformer.h"
#include "model/layers.h"

namespace dalle2 {

/// Keys `norm.*`, `to_qkv.weight`, `to_out.weight`.
class SimpleVitAttentionImpl : public torch::nn::Module {
 public:
  explicit SimpleVitAttentionImpl(const SimpleVitConfig& config);
  /// [B, N, W] -> [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t heads_;
  std::shared_ptr<ClipNormImpl> norm_;
  std::shared_ptr<LinearLayerImpl> to_qkv_, to_out_;
};

/// Keys `net.0.*` (norm), `net.1.*` and `net.3.*`.
class SimpleVitFeedForwardImpl : public torch::nn::Module {
 public:
  explicit SimpleVitFeedForwardImpl(const SimpleVitConfig& config);
  /// [B, N, W] -> [B, N, W], without the residual
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ClipNormImpl> norm_;
  std::shared_ptr<LinearLayerImpl> in_, out_;
};

/// Keys `to_patch_embedding.*`, `transformer.*` and `linear_head.*`, which is there for files alone.
class SimpleVitImpl : public torch::nn::Module {
 public:
  explicit SimpleVitImpl(const SimpleVitConfig& config);
  /// All patches are seen, as vit-pytorch does in eval mode. @param images [B, 3, S, S]
  /// @return [B, N, W]
  at::Tensor forward(const at::Tensor& images);

 private:
  int64_t patch_size_;
  std::shared_ptr<ClipNormImpl> patch_norm_, token_norm_, norm_;
  std::shared_ptr<LinearLayerImpl> to_tokens_;
  struct Layer {
    std::shared_ptr<SimpleVitAttentionImpl> attention;
    std::shared_ptr<SimpleVitFeedForwardImpl> feed_forward;
  };
  std::vector<Layer> layers_;
};

}  // namespace dalle2
