// SPDX-License-Identifier: MIT
// The main loop of a prior run: train, validate and save by the clock, epoch by epoch.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/timer.h"
#include "checkpoint/state_dict.h"
#include "config/prior_run_config.h"
#include "data/prior_dataset.h"
#include "tracker/progress.h"
#include "tracker/tracker.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {

/// Where a run stands; all of it is in every checkpoint.
struct PriorPosition {
  int64_t epoch = 0;
  int64_t row = 0;  ///< rows of this epoch, the dropped ones too
  int64_t samples_seen = 0;
  int64_t iteration = 0;  ///< batches of this epoch
  double best_validation_loss = 0;
};

class PriorRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  PriorRun(const LoadedPriorConfig& loaded, bool quiet);
  ~PriorRun();

  /// Trains to the last epoch. @return kStopped if a signal asked for a stop; the state is saved
  /// then.
  /// @throws NonFiniteError when too many losses or gradients in a row are no numbers
  ExitCode run();

  /// Prints what a run would take: parameters, samples and steps of an epoch.
  void print_plan() const;

 private:
  void print_start() const;
  void recall();
  void recall_position(const Cursor& root, const std::string& path);
  bool train_epoch();
  bool train_batch();
  void log_training();
  double recent_loss() const;
  void guard_updates() const;
  /// Losses and similarities of the validation rows; saves the best.
  void validate();
  void test();
  void log_loss(const std::string& folder, double loss);
  /// Mean loss over the rows of a split; none if it has none.
  std::optional<double> mean_loss(const std::string& split, bool averaged);
  void log_similarities(const std::string& folder, const std::string& split);
  void save(bool is_best, bool is_latest);
  bool stop_asked();

  const LoadedPriorConfig& loaded_;
  const TrainPriorConfig& config_;
  at::Device device_;
  PriorDataset data_;
  std::unique_ptr<PriorTrainer> trainer_;
  Tracker tracker_;
  Progress progress_;
  StageTimes stage_times_;
  PriorPosition position_;
  Timer since_validation_, since_save_, since_step_;
  double samples_per_second_ = 0;
  bool stopped_ = false;
  /// The last ten losses, on the device: reading them synchronises. A checkpoint has them, so that
  /// a resumed run logs what it would have logged.
  std::deque<at::Tensor> recent_losses_;
};

}  // namespace dalle2
