// SPDX-License-Identifier: MIT
// A run of a VQGAN-VAE: steps of the autoencoder and, each with batches of its own, of the
// discriminator; grids of reconstructions and model files as muse's trainer leaves them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/vae/vae_run_config.h"
#include "data/pictures/image_folder.h"
#include "model/vae/vqgan_vae.h"
#include "run/loop/row_run.h"
#include "trainer/vae_trainer.h"

namespace dalle2 {

/// What the log says of the autoencoder beside its whole loss: means of the last updates, as
/// LossWindow has them of the whole losses, and how the codes were used since the last record. A
/// position holds it, so that checkpoints have it and a roll-back takes it back.
class VaeDiagnostics {
 public:
  /// Of a pass. @param losses of this rank's share of an update, weighted by it
  /// @param codes of the codebook
  void add(const VaeLosses& losses, int64_t codes);
  /// The autoencoder's update was made or skipped; all ranks call it.
  /// @param device of the losses @param length updates that a mean is of
  void end_update(ProcessGroup& group, const at::Device& device, int64_t codes, int64_t length);
  /// Means of the finite losses, and the use of the codes, which starts over. All ranks call it.
  LogRecord take(ProcessGroup& group);

  /// Every rank knows what all have seen. All ranks call it.
  void gather(ProcessGroup& group);
  /// Call gather() before they are saved.
  std::vector<PositionField> fields();

 private:
  at::Tensor of_update_;       // [losses] of the passes since the last update
  at::Tensor uses_of_update_;  // [codes] int64
  at::Tensor recent_;          // [updates, losses] of all ranks; NaN: there is no such loss
  at::Tensor uses_;            // [codes] int64, of all ranks, until they were gathered last
  at::Tensor own_uses_;        // of this rank, since then
};

/// Where a VAE's run stands.
struct VaePosition : RunPosition {
  int64_t step = 0;  ///< of the run: updates of both parts, skipped ones too
  int64_t rows = 0;  ///< of an epoch; not saved
  std::optional<double> best_validation_loss;  ///< of the run so far
  VaeDiagnostics diagnostics;

  /// The step that was made last, by the number in the names of results.
  int64_t last_step() const { return step - 1; }

  std::vector<PositionField> fields() override {
    std::vector<PositionField> fields = {{"epoch", &epoch},
                                         {"step", &step},
                                         {"samples_seen", &samples_seen},
                                         {"best_validation_loss", &best_validation_loss, true}};
    for (const PositionField& field : diagnostics.fields()) fields.push_back(field);
    return fields;
  }
  void reset() override {
    const int64_t kept = rows;
    *this = {};
    rows = kept;
  }
  void forget_losses() override { best_validation_loss.reset(); }
  std::string description() const override {
    return fmt::format("step {}, epoch {}, having seen {} samples", step, epoch, samples_seen);
  }
  void gather(ProcessGroup& group) override { diagnostics.gather(group); }
  int64_t epochs_trained() const override {
    return rows > 0 && loader.row >= rows ? epoch + 1 : epoch;
  }
};

/// The network whose features the perceptual loss compares: opens /train/vgg_path and tries it; null
/// without vae.use_vgg_and_gan.
/// @throws ConfigError if it is not a network that gives features [B, F] of such pictures
ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device);

}  // namespace dalle2
