// SPDX-License-Identifier: MIT
// Encoder and decoder of a VQGAN-VAE. Names of parameters are the file
// format.
#pragma once

#include <torch/nn.h>

#include <functional>
#include <memory>
#include <vector>

#include "config/vae/vae_config.h"
#include "model/vae/vae_layers.h"

namespace dalle2 {

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

/// Convolutions that halve the side, and double it.
class VaeResnetImpl : public VaeEncDecImpl {
 public:
  explicit VaeResnetImpl(const VaeConfig& config);
  at::Tensor encode(const at::Tensor& images) override;
  at::Tensor decode(const at::Tensor& map) override;
  const at::Tensor& last_weight() const override { return to_image_->weight; }

 private:
  using Stage = std::function<at::Tensor(const at::Tensor&)>;
  /// Modules by their place; those of the decoder are made from its end.
  struct Made {
    std::shared_ptr<torch::nn::Module> module;
    Stage stage;
  };
  template <class Block>
  static Made make(std::shared_ptr<Block> block);
  static Made activated(std::shared_ptr<torch::nn::Module> group, Stage conv);
  void add_all(const char* name, const std::vector<Made>& made, std::vector<Stage>& stages);

  std::shared_ptr<ConvLayerImpl> to_image_;
  std::vector<Stage> encoders_, decoders_;
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
