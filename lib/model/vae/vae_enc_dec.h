// SPDX-License-Identifier: MIT
// Encoder, decoder and discriminator of a VQGAN-VAE. Names of parameters are the file format. Legend: B
// batch, C channels, H W pixels, N tokens, D width.
#pragma once

#include <torch/nn.h>

#include <memory>
#include <vector>

#include "config/vae/vae_config.h"
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

/// Pictures to maps of features and back.
class VaeEncDecImpl : public torch::nn::Module {
 public:
  /// [B, C, H, W] -> [B, encoded_dim, H / reduction, W / reduction]
  virtual at::Tensor encode(const at::Tensor& images) = 0;
  /// [B, encoded_dim, h, w] -> [B, C, h reduction, w reduction]
  virtual at::Tensor decode(const at::Tensor& map) = 0;
  /// The weight that makes pictures: the adversarial loss is weighed by the gradients at it.
  virtual const at::Tensor& last_weight() const = 0;
};

/// Halves the side, or doubles it, then leaky(); key `0.*`.
class VaeResampleImpl : public torch::nn::Module {
 public:
  VaeResampleImpl(int64_t in, int64_t out, bool doubles);
  /// [B, in, H, W] -> [B, out, H', W']
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<ConvLayerImpl> halve_;                    // null if it doubles
  std::shared_ptr<torch::nn::ConvTranspose2dImpl> double_;  // null if it halves
};

/// Convolutions that halve the side, and double it.
class VaeResnetImpl : public VaeEncDecImpl {
 public:
  explicit VaeResnetImpl(const VaeConfig& config);
  at::Tensor encode(const at::Tensor& images) override;
  at::Tensor decode(const at::Tensor& map) override;
  const at::Tensor& last_weight() const override { return to_image_->weight; }

 private:
  std::shared_ptr<ConvLayerImpl> to_image_;
  std::vector<torch::nn::AnyModule> encoders_, decoders_;
};

/// Patches as the tokens of two transformers.
class VaeVitImpl : public VaeEncDecImpl {
 public:
  explicit VaeVitImpl(const VaeConfig& config);
  at::Tensor encode(const at::Tensor& images) override;
  at::Tensor decode(const at::Tensor& map) override;
  const at::Tensor& last_weight() const override { return to_pixels_->weight; }

 private:
  int64_t channels_, patch_size_;
  std::shared_ptr<LinearLayerImpl> from_pixels_, widen_, to_pixels_;
  std::shared_ptr<VaeTransformerImpl> encoder_, decoder_;
};

std::shared_ptr<VaeEncDecImpl> make_vae_enc_dec(const VaeConfig& config);

}  // namespace dalle2
