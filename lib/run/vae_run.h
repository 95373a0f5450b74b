// SPDX-License-Identifier: MIT
// A run of a VQGAN-VAE: steps of the autoencoder and, each with batches of its own, of the
// discriminator; grids of reconstructions and model files as muse's trainer leaves them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/vae_run_config.h"
#include "data/image_folder.h"
#include "run/rank_batch.h"
#include "run/training_run.h"
#include "trainer/vae_trainer.h"

namespace dalle2 {

struct VaePosition : RunPosition {
  int64_t step = 0;                   ///< of the run: updates of both parts, skipped ones too
  int64_t row = 0;                    ///< pictures of this epoch, the dropped ones too
  bool discriminator_is_due = false;  ///< the step's autoencoder has had its update
  double best_validation_loss = 0;    ///< 0: none yet

  void fields(PositionVisitor& visitor) override;
  void reset() override { *this = {}; }
  void guess_own_fields() override {}
  void restart_epoch() override { row = iteration = 0; }
  std::string description() const override;
  int64_t sample_of_epoch() const override { return row; }
};

/// @throws ConfigError if no grids can be written into train.results_folder
void check_results_folder(const TrainVaeConfig& config);

using VaeRankBatch = RankBatch<ImageBatch>;

/// What the log says of the autoencoder beside its whole loss: means since the last record.
class VaeDiagnostics {
 public:
  explicit VaeDiagnostics(int64_t codes) : codes_(codes) {}
  /// @param losses of this rank's share of a step, weighted by it
  void add(const VaeLosses& losses);
  void count_step() { ++steps_; }
  /// Over all ranks, which all have to call it; begins anew.
  LogRecord take(ProcessGroup& group);

 private:
  int64_t codes_;
  int64_t steps_ = 0;
  at::Tensor reconstruction_, perceptual_, generator_, gan_weight_, quantizer_;  // [] sums
  at::Tensor uses_;                                                              // [codes] counts
};

class VaeRun : public TrainingRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  VaeRun(const LoadedVaeConfig& loaded, const RunProcess& process);

  /// Removes the grids and model files that earlier runs left in the results folder, and nothing
  /// else; call it before run(). @throws DataError
  void clear_results() override;
  void open() override;

 private:
  ExitCode run_epochs() override;
  bool train_epoch();
  bool is_done() const { return position_.step >= config_.train.num_train_steps; }
  std::optional<VaeRankBatch> next_batch(const std::string& split, int64_t row);
  void pass(const VaeRankBatch& batch, double share);
  bool end_step(int64_t samples);
  bool has_gan() const;
  void save_results();
  void save_grid(const at::Tensor& images, bool averaged);
  double validation_loss(bool averaged);
  void save_model_files();
  LogRecord step_values(double samples_per_second) override;
  int64_t samples_per_epoch() const override { return data_.rows("train"); }
  int64_t epochs() const override;
  std::string result_path(const std::string& name) const;

  const TrainVaeConfig& config_;
  ImageFolder data_;
  VaePosition& position_;
  VaeTrainer& trainer_;
  VaeDiagnostics diagnostics_;
  DropCounts dropped_, dropped_in_epoch_;
};

}  // namespace dalle2
