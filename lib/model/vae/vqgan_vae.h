// SPDX-License-Identifier: MIT
// The VQGAN-VAE (Esser et al. 2021, arXiv 2012.09841) as muse-maskgit-pytorch and dalle2-pytorch
// have it, and its losses. Names of parameters are the file format. Legend: B
// batch, C channels, H W pixels, h w places of the encoded map, D its width.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn.h>

#include <functional>
#include <memory>

#include "config/vae/vae_config.h"
#include "model/vae/quantizer.h"
#include "model/vae/vae_enc_dec.h"

namespace dalle2 {

/// Features of pictures [B, 3, H, W] in [0, 1] that a perceptual loss compares: [B, F]. Gradients
/// pass, its weights take none.
using ImageFeatures = std::function<at::Tensor(const at::Tensor& images)>;

struct VaeReconstruction {
  at::Tensor images;    ///< [B, C, H, W]
  Quantized quantized;  ///< of the encoded map
};

/// Encoder, quantiser and decoder: what is trained by the autoencoder's losses, and all that a VAE is
/// after its training.
class VaeAutoencoderImpl : public torch::nn::Module {
 public:
  explicit VaeAutoencoderImpl(const VaeConfig& config);

  std::shared_ptr<VaeEncDecImpl> enc_dec;
  std::shared_ptr<QuantizerImpl> quantizer;
};

/// All but the total are without gradients, and undefined where the loss is not used.
struct VaeLosses {
  at::Tensor total;           ///< []
  at::Tensor reconstruction;  ///< []
  at::Tensor perceptual;      ///< []
  at::Tensor generator;       ///< [] of the adversarial loss, before its weight
  at::Tensor gan_weight;      ///< [] of the adversarial loss
  at::Tensor quantizer;       ///< [] commitment, or entropies of lookup-free quantisation
  at::Tensor indices;         ///< [B, h, w] int64
};

class VqganVaeImpl : public torch::nn::Module {
 public:
  explicit VqganVaeImpl(const VaeConfig& config);

  /// Encodes, quantises, decodes. @param images [B, C, H, W] @param generator see QuantizerImpl
  /// @throws DataError for another number of channels, or a side that the network does not take
  VaeReconstruction reconstruct(const at::Tensor& images, const at::Generator& generator = {});

  /// The map that a latent diffusion works on: that of either kind before it is quantised, of
  /// pictures of any side that is divisible by the network's. @return [B, D, h, w]
  at::Tensor encode_unquantized(const at::Tensor& images);
  /// Quantises such a map, and decodes it: what is near a code becomes the code.
  at::Tensor decode_unquantized(const at::Tensor& map);

  /// What the autoencoder is trained by. One pass of the discriminator and of the feature network
  /// serves the losses and the weight of the adversarial one, which is the ratio of the gradients
  /// that the perceptual and the adversarial loss have at the last layer, at most 10,000.
  /// @param features of the perceptual loss; unused without use_vgg_and_gan
  /// @param with_gan false: the adversarial loss is left out, as before the discriminator's start
  VaeLosses autoencoder_losses(const at::Tensor& images,
                               const ImageFeatures& features,
                               const at::Generator& generator,
                               bool with_gan = true);

  /// How far `made` is from the pictures, by the error that the config chooses. @return []
  at::Tensor reconstruction_loss(const at::Tensor& made, const at::Tensor& images) const;

  /// What the discriminator is trained by. Gradients reach its parameters alone.
  /// @param with_penalty adds 10 (|gradient of the logits at the real pictures| - 1)^2
  /// @return []
  at::Tensor discriminator_loss(const at::Tensor& images,
                                const at::Generator& generator,
                                bool with_penalty = true);

  const VaeConfig& config() const { return config_; }
  /// D
  int64_t encoded_dim() const { return config_.encoded_dim(); }
  const std::shared_ptr<VaeAutoencoderImpl>& autoencoder() const { return autoencoder_; }
  const std::shared_ptr<QuantizerImpl>& quantizer() const { return autoencoder_->quantizer; }
  /// Null without use_vgg_and_gan.
  const std::shared_ptr<DiscriminatorImpl>& discriminator() const { return discr_; }

 private:
  /// @param any_size pictures of the dalle2 kind need not have its `image_size`
  void check_images(const at::Tensor& images, bool any_size = false) const;
  at::Tensor adversarial_loss(const at::Tensor& logits) const;
  const char* quantizer_name() const { return config_.is_muse() ? "quantizer" : "vq"; }

  VaeConfig config_;
  std::shared_ptr<VaeAutoencoderImpl> autoencoder_;  // its children are registered, under its names
  std::shared_ptr<DiscriminatorImpl> discr_;
};
TORCH_MODULE(VqganVae);

/// A VAE that is not trained: no gradients, no discriminator.
VqganVae frozen_vae(VaeConfig config);

}  // namespace dalle2
