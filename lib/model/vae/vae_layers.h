// SPDX-License-Identifier: MIT
// Blocks of a VQGAN-VAE's encoder and decoder, and its discriminator. Names of parameters are the
// file format. Legend: B batch, C channels, H W pixels, N tokens, D width.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <vector>

#include "model/layers.h"

namespace dalle2 {

/// max(x, 0.1 x), the activation of the whole VAE.
at::Tensor leaky(const at::Tensor& x);

/// Two 3x3 convolutions, each with a GroupNorm and leaky(), a 1x1 convolution, and the input again.
/// Where it is gated, half of the channels of a convolution gate the other half (Dauphin et al. 2017)
/// instead of leaky().
class VaeBlockImpl : public torch::nn::Module {
 public:
  VaeBlockImpl(int64_t channels, int64_t groups, bool gated);
  /// [B, C, H, W] -> [B, C, H, W]
  at::Tensor forward(const at::Tensor& x);

 private:
  bool gated_;
  std::vector<std::shared_ptr<ConvLayerImpl>> convs_;
  std::vector<std::shared_ptr<torch::nn::GroupNormImpl>> norms_;
};

/// What two places of a map add to their attention logit: a small network of the logarithm of their
/// distances (Liu et al. 2021, "Swin Transformer V2", section 3.3). Computed for every size again.
class ContinuousPositionBiasImpl : public torch::nn::Module {
 public:
  ContinuousPositionBiasImpl(int64_t dim, int64_t heads);
  /// @return [heads, H W, H W]
  at::Tensor forward(int64_t height, int64_t width);

 private:
  std::vector<std::shared_ptr<LinearLayerImpl>> linears_;
};

/// Self attention over a map with a continuous position bias, and its residual.
class VaeAttentionImpl : public torch::nn::Module {
 public:
  VaeAttentionImpl(int64_t dim, int64_t dim_head, int64_t heads);
  /// [B, C, H, W] -> [B, C, H, W]
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t dim_head_, heads_;
  at::Tensor gamma_;  // [1, C, 1, 1]
  std::shared_ptr<ContinuousPositionBiasImpl> position_bias_;
  std::shared_ptr<ConvLayerImpl> to_qkv_, to_out_;
};

/// A transformer over tokens: attention and feed-forward layers with their norms before, and a norm
/// at the end.
class VaeTransformerImpl : public torch::nn::Module {
 public:
  VaeTransformerImpl(int64_t dim, int64_t layers, int64_t dim_head, int64_t heads, int64_t ff_mult);
  /// [B, N, D] -> [B, N, D]
  at::Tensor forward(at::Tensor x);

 private:
  struct Layer {
    std::shared_ptr<torch::nn::LayerNormImpl> attention_norm, forward_norm;
    std::shared_ptr<LinearLayerImpl> to_qkv, to_out, widen, narrow;
  };
  at::Tensor attend(const Layer& layer, const at::Tensor& x) const;

  int64_t dim_head_, heads_;
  std::vector<Layer> layers_;
  std::shared_ptr<torch::nn::LayerNormImpl> norm_;
};

/// The discriminator of a VQGAN (Esser et al. 2021, arXiv 2012.09841): one logit a patch.
class DiscriminatorImpl : public torch::nn::Module {
 public:
  /// @param dim width before the first halving @param layers halvings, each twice as wide
  DiscriminatorImpl(int64_t dim, int64_t layers, int64_t channels);
  /// [B, C, H, W] -> [B, 1, H / 2^layers - 3, W / 2^layers - 3]
  at::Tensor forward(const at::Tensor& images);

 private:
  std::vector<std::shared_ptr<ConvLayerImpl>> convs_;
  std::vector<std::shared_ptr<torch::nn::GroupNormImpl>> norms_;  // of all but the first
  std::shared_ptr<ConvLayerImpl> mix_, to_logits_;
};

}  // namespace dalle2
