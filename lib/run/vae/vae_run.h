// SPDX-License-Identifier: MIT
// A run of a VQGAN-VAE: steps of the autoencoder and, each with batches of its own, of the
// discriminator; grids of reconstructions and model files as muse's trainer leaves them.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/vae/vae_run_config.h"
#include "data/pictures/image_folder.h"
#include "run/loop/run_position.h"
#include "run/loop/training_run.h"
#include "run/vae/vae_log.h"
#include "trainer/vae_trainer.h"

namespace dalle2 {

/// Where a VAE's run stands.
struct VaePosition : RunPosition {
  int64_t step = 0;  ///< of the run: updates of both parts, skipped ones too
  int64_t row = 0;   ///< pictures of this epoch, the dropped ones too
  int64_t rows = 0;  ///< of an epoch; not saved
  double best_validation_loss = std::numeric_limits<double>::infinity();  ///< of the run so far
  VaeDiagnostics diagnostics;

  /// The step that was made last, by the number in the names of results.
  int64_t last_step() const { return step - 1; }

  void fields(PositionVisitor& visitor) override;
  void reset() override {
    const int64_t kept = rows;
    *this = {};
    rows = kept;
  }
  void guess_own_fields() override {}
  void restart_epoch() override { row = iteration = 0; }
  std::string description() const override;
  void gather(ProcessGroup& group) override { diagnostics.gather(group); }
  int64_t sample_of_epoch() const override { return row; }
  int64_t epochs_trained() const override { return rows > 0 && row >= rows ? epoch + 1 : epoch; }
};

/// The network whose features the perceptual loss compares: opens /train/vgg_path and tries it; null
/// without vae.use_vgg_and_gan.
/// @throws ConfigError if it is not a network that gives features [B, F] of such pictures
ImageFeatures perceptual_features(const TrainVaeConfig& config, const at::Device& device);

using VaeRankBatch = RankBatch<ImageBatch>;

class VaeRun : public TrainingRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process);

  void open() override;

 private:
  ExitCode run_epochs() override;
  bool train_epoch();
  bool is_done() const { return position_.step >= config_.train.num_train_steps; }
  /// A place in the data.
  struct Place {
    int64_t epoch = 0, row = 0;
  };
  std::optional<VaeRankBatch> next_batch(const std::string& split, const Place& place);
  std::vector<VaeRankBatch> next_group_from(Place& place);
  std::vector<VaeRankBatch> discriminators_group_from(Place& place);
  std::vector<VaeBatch> batches_of(const std::vector<VaeRankBatch>& group, int64_t epoch);
  bool make_step(const std::vector<VaeRankBatch>& group, Place after);
  bool has_gan() const;
  void finish_step();
  void validate();
  double validation_loss(bool averaged);
  void save_grids();
  void save_grid(const at::Tensor& images, bool averaged);
  void save_model();
  void write_model(const Dict& averaged);
  LogRecord step_values(double samples_per_second) override;
  int64_t samples_per_epoch() const override { return data_.rows("train"); }
  int64_t epochs() const override;
  int64_t counted_epochs() const;
  bool has_trained_all() const override {
    return is_done() || position_.epoch >= config_.train.epochs;
  }
  std::string result_path(const std::string& name) const;

  const TrainVaeConfig& config_;
  ImageFolder data_;
  VaePosition& position_;
  VaeTrainer& trainer_;
  DropCounts dropped_;
  int64_t epochs_ = 0;  // of the run, as counted where the epoch began
};

/// What such a run would take. @throws as it would
void dry_run(const LoadedVaeConfig& loaded, int64_t processes, const StartOptions& start);

}  // namespace dalle2
