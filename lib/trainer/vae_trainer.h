// SPDX-License-Identifier: MIT
// Training of a VQGAN-VAE: its two losses, reconstructions. What all trainers share, such as updates
// and state, is in trainer/trainer.h.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <optional>

#include "config/vae_train_config.h"
#include "model/vqgan_vae.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Its first part is the autoencoder; the second the discriminator, where there is one. Usage:
///   VaeTrainer trainer(vae, config.train, features, device);
///   trainer.step_autoencoder(images, random, /*with_gan=*/true);
///   trainer.update(VaeTrainer::kAutoencoder);
///   trainer.step_discriminator(other_images, random, /*with_penalty=*/true);
///   trainer.update(VaeTrainer::kDiscriminator);
class VaeTrainer : public Trainer {
 public:
  static constexpr int64_t kAutoencoder = 1, kDiscriminator = 2;

  /// @param features of the perceptual loss; unused without use_vgg_and_gan
  /// @throws ConfigError for a warm-up of no steps, betas that are not two, ...
  VaeTrainer(VqganVae vae,
             const VaeTrainConfig& config,
             ImageFeatures features,
             const at::Device& device);

  /// Forward and backward of one batch for the autoencoder. @param weight of the batch in the update
  /// @return the losses, times `weight`; detached: reading them synchronises
  VaeLosses step_autoencoder(const at::Tensor& images,
                             const at::Generator& generator,
                             bool with_gan,
                             double weight = 1.0);
  /// The same for the discriminator. @return [] the loss times `weight`, detached
  at::Tensor step_discriminator(const at::Tensor& images,
                                const at::Generator& generator,
                                bool with_penalty,
                                double weight = 1.0);

  void pass_without_samples(const std::vector<int64_t>& parts) override;

  /// The autoencoder's losses without gradients, in eval mode. @param averaged by the averaged
  /// weights if there are any
  VaeLosses evaluate(const at::Tensor& images, bool averaged);
  /// What the VAE makes of pictures, in eval mode, on their device.
  at::Tensor reconstruct(const at::Tensor& images, bool averaged);

  VqganVae vae() const { return vae_; }
  bool has_discriminator() const { return num_parts() == kDiscriminator; }

 private:
  void list_state(TrainState& state) const override;
  std::shared_ptr<torch::nn::Module> swap_network(
      size_t index, std::shared_ptr<torch::nn::Module> network) const override;

  mutable VqganVae vae_;
  ImageFeatures features_;
};

}  // namespace dalle2
