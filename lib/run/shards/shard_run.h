// SPDX-License-Identifier: MIT
// What runs over shards have in common: how the shards are dealt and read, the validation after each
// epoch, snapshots. A kind adds what it needs of a sample, its losses and what follows a validation.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "config/shared/train_options.h"
#include "run/loop/training_run.h"
#include "run/shards/shard_data.h"

namespace dalle2 {

/// Where a run over shards stands. The names are those of the reference's decoder.
struct ShardPosition : RunPosition {
  std::vector<double> validation_losses;  ///< one an epoch, averaged over the trained parts
  /// In which the shards were cut before they were dealt into the splits; 0: not known. The run
  /// keeps it, so that no validation shard is ever trained on.
  int64_t slices = 0;
  int64_t dealt = 0;            ///< slices of this start, once it has dealt the shards; not saved
  bool has_other_data = false;  ///< since this start: `slices` is of those before, and was dropped
  int64_t samples_at_last_save = 0;  ///< of this epoch
  int64_t samples_per_epoch = 0;     ///< 0 until an epoch has been through
  /// Of this epoch, between its validation and its end.
  std::optional<double> validation_loss;

  std::vector<PositionField> fields() override {
    return {{"epoch", &epoch},
            {"sample", &loader.row},
            {"next_task", &next_task},
            {"validation_losses", &validation_losses},
            {"samples_seen", &samples_seen},
            {"slices", &slices, true},
            {"samples_at_last_save", &samples_at_last_save, true},
            {"samples_per_epoch", &samples_per_epoch, true},
            {"validation_loss", &validation_loss, true}};
  }
  void reset() override {
    const int64_t kept = dealt;
    *this = {};
    dealt = kept;
  }
  /// A checkpoint of the reference has no place of the loader: the sample count is the next best.
  void guess_own_fields() override {
    // At the end of an epoch the next one begins as any other, not in the one lane of a count of samples.
    loader = next_task == kTrainTask && loader.row > 0 ? LoaderPosition::after_samples(loader.row)
                                                       : LoaderPosition{};
    samples_at_last_save = loader.row;
  }
  void restart_epoch() override {
    RunPosition::restart_epoch();
    samples_at_last_save = 0;
  }
  void restart_with_other_data() override {
    restart_epoch();
    if (next_task != kTrainTask) ++epoch;
    next_task = kTrainTask;
    slices = dealt;
    samples_per_epoch = 0;
    has_other_data = true;
    forget_losses();
  }
  void forget_losses() override {
    validation_losses.clear();
    validation_loss.reset();
    actions_due = 0;
  }
  std::string description() const override {
    const auto best = std::ranges::min_element(validation_losses);
    return fmt::format("epoch {} having seen {} samples with minimum validation loss {}",
                       epoch,
                       samples_seen,
                       best == validation_losses.end() ? "N/A" : short_number(*best));
  }
  std::string resumes_with() const override {
    if (next_task == kTrainTask) return fmt::format("epoch {} at sample {}", epoch, loader.row);
    if (next_task == "val") return fmt::format("the validation of epoch {}", epoch);
    return fmt::format("sampling and saving after epoch {}", epoch);
  }

  /// Whether validation_loss is less than all earlier ones.
  bool is_best() const {
    return validation_loss && std::ranges::all_of(validation_losses, [&](double earlier) {
             return *validation_loss < earlier;
           });
  }
  /// `slices`, within what a config allows; 0: not known
  int64_t slices_of_run() const {
    return std::clamp<int64_t>(slices, 0, static_cast<int64_t>(most::kRanks));
  }
};

/// ShardPosition::slices_of_run() of a checkpoint; none if it does not say.
std::optional<int64_t> slices_of(const Cursor& checkpoint);

/// The shards that there are, those of a remainder too, for comparing with a checkpoint's.
DataSize data_size_of(const ShardData& data);

class ShardRun : public TrainingRun {
 protected:
  /// @param loop, data have to outlive the run @param needs of a sample
  ShardRun(RunPlan plan,
           const MakeTrainer& make_trainer,
           const ShardLoopConfig& loop,
           const ShardDataConfig& data,
           LoaderOptions needs);

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
  void open_loader(std::unique_ptr<ShardLoader>& loader,
                   const std::string& split,
                   const LoaderPosition& from);
  void save_snapshot();
  void validate_epoch();
  void log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples);
  std::optional<Batch> next_batch(ShardLoader& loader);
  int64_t samples_per_epoch() const override;

  std::unique_ptr<ShardLoader> loader_;  // of the training shards, within an epoch
};

}  // namespace dalle2
