// SPDX-License-Identifier: MIT
// Training of a VQGAN-VAE: its two losses, reconstructions. What all trainers share, such as updates
// and state, is in trainer/trainer.h.
#pragma once

#include <ATen/core/Generator.h>

#include <memory>
#include <optional>

#include "config/vae/vae_run_config.h"
#include "model/vae/vqgan_vae.h"
#include "trainer/trainer.h"

namespace dalle2 {

/// Whether a file has a VAE's weights, but no place of a run: muse's `vae.N.pt` and its trainer's file.
bool is_vae_weights_alone(const Cursor& root);

struct VaeEvaluation {
  at::Tensor reconstruction_loss;  ///< [] mean over the pictures
  at::Tensor images;               ///< [B, C, H, W] float32: what the VAE makes of them
};

/// Its first part is the autoencoder; the second the discriminator, where there is one. Usage:
///   VaeTrainer trainer(vae, config.train, features, device);
///   trainer.step_autoencoder(images, random, /*with_gan=*/true);
///   trainer.update(VaeTrainer::kAutoencoder);
///   trainer.learn_codes(VaeTrainer::kAutoencoder, random);
///   trainer.step_discriminator(other_images, random, /*with_penalty=*/true);
///   trainer.update(VaeTrainer::kDiscriminator);
///   trainer.learn_codes(VaeTrainer::kDiscriminator, random);
///   trainer.end_step();  // averages take the codes of the whole step, as ema_pytorch's do
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

  /// After update() of a part: moves the codes of a codebook by what the part's passes have
  /// quantised, unless the update was skipped. All ranks call it.
  void learn_codes(int64_t part, const at::Generator& generator);

  /// Without gradients, in eval mode, in chunks and with the arithmetic of the config.
  /// @param averaged by the averaged weights if there are any
  VaeEvaluation evaluate(const at::Tensor& images, bool averaged);

  /// By `vae.N.pt`, `vae.N.ema.pt`, a model file; and by a checkpoint of muse's own trainer, which
  /// does not count steps and whose optimizers number their parameters in the order of a Python set.
  bool is_begun_by(const Cursor& root) const override { return is_vae_weights_alone(root); }

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
