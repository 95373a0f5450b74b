// SPDX-License-Identifier: MIT
// What runs over shards have in common: how the shards are dealt and read, the validation after each
// epoch, snapshots. A kind adds what it needs of a sample, its losses and what follows a validation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/train_options.h"
#include "run/loop/training_run.h"
#include "run/shards/shard_data.h"
#include "run/shards/shard_position.h"

namespace dalle2 {

/// How a kind reads its shards. What is passed by reference has to outlive the run.
struct ShardRunPlan {
  const ShardLoopConfig& loop;
  const ShardDataConfig& data;
  LoaderOptions needs;  ///< of a sample
};

/// The shards of all splits, for comparing with a checkpoint's. @param data has to outlive the result
DataSize data_size_of(const ShardData& data);

class ShardRun : public TrainingRun {
 protected:
  ShardRun(RunPlan plan, const MakeTrainer& make_trainer, const ShardRunPlan& shards);

  // What a kind adds:
  /// Deals the shards into the splits, as the run did that this start resumes.
  void prepare() override;
  /// Adds the loss of each trained part of a batch of this rank, never an empty one, to its entry of
  /// `sums`. Reads nothing back from the device.
  virtual void add_validation_losses(const Batch& batch, std::vector<LossSum>& sums) = 0;
  /// After a snapshot within an epoch.
  virtual void show_snapshot() {}
  /// Logs what else there is to measure after a validation.
  virtual void evaluate_epoch() {}
  /// The end of an epoch.
  virtual void sample_epoch() { save_epoch(); }
  void save_epoch();

  /// A kind may add to them.
  LogRecord step_values(double samples_per_second) override;

  const ShardLoopConfig& loop_;
  const ShardDataConfig& data_config_;
  ShardPosition& position_;
  ShardData data_;
  std::vector<Batch> group_;  // the batches of the next update

 private:
  void open_epoch() override;
  bool read_group() override;
  void advance() override;
  void after_step() override;
  void close_epoch(bool whole) override;
  void end_epoch() override;
  std::unique_ptr<ShardLoader> open_loader(const std::string& split,
                                           bool in_order,
                                           const LoaderPosition& from);
  void save_snapshot();
  void validate_epoch();
  void log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples);
  std::optional<Batch> next_batch(ShardLoader& loader);
  void report_drops(const ShardLoader& loader, const std::string& split);
  int64_t samples_per_epoch() const override;

  std::unique_ptr<ShardLoader> loader_;  // of the training shards, within an epoch
};

}  // namespace dalle2
