// SPDX-License-Identifier: MIT
// What runs over shards have in common: epochs of training and validation, snapshots, the place in
// the shards. A kind adds what it needs of a sample, its losses and what follows a validation.
#pragma once

#include <cstdint>
#include <functional>
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
 public:
  /// Deals the shards into the splits, as the run did that this start resumes, and loads examples.
  void read_examples() override;

 protected:
  ShardRun(RunPlan plan, const MakeTrainer& make_trainer, const ShardRunPlan& shards);

  // What a kind adds:
  /// Reads the samples that are shown in the log; again if the shards are dealt again. All ranks call
  /// it together.
  virtual void load_examples() {}
  /// One update of each trained part from all batches of the group: pass_batches(), or what a kind
  /// does in its place whose loss is not a mean over the samples.
  /// @return samples of all ranks; none if a stop was asked for before the update
  virtual std::optional<int64_t> train_group(const std::vector<Batch>& group) = 0;
  /// Adds the loss of each trained part of a batch of this rank, never an empty one, to its entry of
  /// `sums`. Reads nothing back from the device.
  /// @param place of the first sample in the validation
  virtual void add_validation_losses(const Batch& batch,
                                     int64_t place,
                                     std::vector<LossSum>& sums) = 0;
  /// After a snapshot within an epoch.
  virtual void show_snapshot() {}
  /// What follows a validation, from position_.next_task on; save_epoch() is a part of it.
  virtual void end_epoch() = 0;

  /// Gradients of a batch of this rank, of each trained part, weighted by `share`.
  /// @param place of its first sample in the epoch: addresses what is drawn, so that a resumed epoch,
  /// or one of another number of ranks, draws the same
  using PassBatch = std::function<void(const Batch& batch, int64_t place, const BatchShare& share)>;
  /// train_group() of losses that are means over the samples.
  std::optional<int64_t> pass_batches(const std::vector<Batch>& group, const PassBatch& pass);

  /// Saves the state at the end of an epoch, as the best if its validation loss is.
  void save_epoch();

  /// A kind may add to them.
  LogRecord step_values(double samples_per_second) override;

  const ShardLoopConfig& loop_;
  const ShardDataConfig& data_config_;
  ShardPosition& position_;
  ShardData data_;

 private:
  ExitCode run_epochs() override;
  void deal_first(int64_t slices);
  void deal(int64_t slices);
  std::unique_ptr<ShardLoader> open_loader(const std::string& split,
                                           bool in_order,
                                           const LoaderPosition& from);
  int64_t slices_of_earlier_run();
  void keep_slices();
  bool train_epoch();
  bool train_groups(ShardLoader& loader);
  bool snapshot_is_due(bool first) const;
  void save_snapshot();
  void validate_epoch();
  void log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples);
  std::optional<Batch> next_batch(ShardLoader& loader);
  void report_drops(const ShardLoader& loader, const std::string& split);
  int64_t samples_per_epoch() const override;
};

}  // namespace dalle2
