// SPDX-License-Identifier: MIT
// A run of a diffusion prior: train, validate and save by the clock, epoch by epoch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/timer.h"
#include "config/prior_run_config.h"
#include "data/prior_dataset.h"
#include "run/loss_window.h"
#include "run/run_checkpoints.h"
#include "run/run_session.h"
#include "run/update_guard.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {

/// The names are the reference's.
struct PriorPosition : RunPosition {
  /// @param config gives the values of the start @param rows of an epoch
  PriorPosition(const PriorTrainConfig& config, int64_t rows) : config_(&config), rows_(rows) {
    reset();
  }

  double best_validation_loss = 0;  ///< that of the config before there is one
  int64_t row = 0;                  ///< rows of this epoch, the dropped ones too
  int64_t iteration = 0;            ///< batches of this epoch

  void fields(PositionVisitor& visitor) override;
  void reset() override;
  /// A checkpoint of the reference tells the samples of the whole run alone.
  void guess_own_fields() override { row = samples_seen % rows_; }
  void restart_epoch() override { row = iteration = 0; }
  std::string description() const override;
  int64_t sample_of_epoch() const override { return row; }

 private:
  const PriorTrainConfig* config_;
  int64_t rows_;
};

class PriorRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  PriorRun(const LoadedPriorConfig& loaded, bool quiet);

  /// Tells what is about to be trained.
  void open();
  /// Trains to the last epoch; comes after open(). @return kStopped if a signal asked for a stop;
  /// the state is saved then.
  /// @throws NonFiniteError when too many losses or gradients in a row are no numbers
  ExitCode run();

 private:
  ExitCode run_epochs();
  bool train_epoch();
  std::vector<PriorBatch> next_group();
  void train_group(const std::vector<PriorBatch>& group);
  void log_training();
  void finish();
  /// Losses and similarities of the validation rows; saves the best. @throws StoppedError
  void validate();
  void save_latest();
  /// Mean loss over the rows of a split; none if it has none. @throws StoppedError
  std::optional<double> mean_loss(const std::string& split, bool averaged);
  void log_loss(const std::string& folder, double loss);
  void log_similarities(const std::string& folder);

  const TrainPriorConfig& config_;
  PriorDataset data_;
  PriorPosition position_;
  RunSession session_;
  std::unique_ptr<PriorTrainer> made_trainer_;
  PriorTrainer& trainer_;
  LossWindow losses_;
  Timer since_validation_, since_latest_, since_step_;
  double samples_per_second_ = 0;
  RunCheckpoints checkpoints_;
  UpdateGuard guard_;
};

}  // namespace dalle2
