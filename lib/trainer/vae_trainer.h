// SPDX-License-Identifier: MIT
// Training of a VQGAN-VAE: its two losses, reconstructions. What all trainers share, such as updates
// and state, is in trainer/trainer.h.
#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <vector>

#include "config/vae/vae_run_config.h"
#include "model/vae/vqgan_vae.h"
#include "trainer/trainer.h"

namespace dalle2 {

struct VaeEvaluation {
  at::Tensor reconstruction_loss;  ///< [] mean over the pictures
  at::Tensor images;               ///< [B, C, H, W] float32: what the VAE makes of them
};

/// A batch of one part of a step.
struct VaeBatch {
  /// Gives [B, C, H, W] float32 on the device, when the passes begin; null: this rank has no samples.
  std::function<at::Tensor()> images;
  at::Generator random;  ///< for what its passes draw
  BatchShare share = {};
};

/// What a step trains on: each part has batches of its own, as in muse's trainer.
struct VaeGroups {
  std::vector<VaeBatch> autoencoder;
  /// Empty: the step is the autoencoder's alone, without the losses of a GAN.
  std::vector<VaeBatch> discriminator = {};
  /// For codes that are replaced after the update of each part.
  at::Generator codes = {}, discriminator_codes = {};
  bool with_penalty = false;  ///< on the gradients of the discriminator
};

/// Its first part is the autoencoder; the second the discriminator, where there is one. Usage:
///   VaeTrainer trainer(vae, config.train, features, device);
///   const auto pictures = [&] { return images; }, others = [&] { return other_images; };
///   trainer.step({.autoencoder = {{pictures, random}}, .discriminator = {{others, random}}});
class VaeTrainer : public Trainer {
 public:
  static constexpr int64_t kAutoencoder = 1, kDiscriminator = 2;

  /// @param features of the perceptual loss; unused without use_vgg_and_gan
  VaeTrainer(VqganVae vae,
             const VaeTrainConfig& config,
             ImageFeatures features,
             const at::Device& device);

  /// A whole step: passes and update of the autoencoder, then of the discriminator; after each the
  /// codes of a codebook move by what its passes have quantised, unless the update was skipped. Averages
  /// take the codes of the whole step, as ema_pytorch's do. All ranks call it.
  /// @return of each batch of the autoencoder that has samples here the losses times its weight;
  /// detached: reading them synchronises. The total of the discriminator: last_loss(kDiscriminator)
  std::vector<VaeLosses> step(const VaeGroups& groups);

  /// Without gradients, in eval mode, in chunks and with the arithmetic of the config.
  /// @param averaged by the averaged weights if there are any
  VaeEvaluation evaluate(const at::Tensor& images, bool averaged);

  VqganVae vae() const { return vae_; }
  bool has_discriminator() const { return num_parts() == kDiscriminator; }

 private:
  /// Of the pictures of a pass, whose share in the update's loss is `factor`.
  using LossOfPass = std::function<at::Tensor(const at::Tensor& images, double factor)>;
  /// The passes of a batch. @return [] the sum of their losses; undefined without samples
  at::Tensor pass_batch(int64_t part, const VaeBatch& batch, const LossOfPass& loss_of);
  void list_state(TrainState& state) const override;

  VqganVae vae_;
  ImageFeatures features_;
};

}  // namespace dalle2
