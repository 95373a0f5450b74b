// SPDX-License-Identifier: MIT
// A decoder run: train, validate, evaluate, sample and save, epoch by epoch. The loop is in
// decoder_run.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"
#include "metrics/image_metrics.h"
#include "run/decoder_data.h"
#include "run/decoder_pictures.h"
#include "run/training_run.h"
#include "trainer/decoder_trainer.h"

namespace dalle2 {

/// The names are the reference's.
struct DecoderPosition : RunPosition {
  int64_t sample = 0;                     ///< samples of this epoch, over all ranks
  std::string next_task = "train";        ///< train, val, eval or sample
  std::vector<double> validation_losses;  ///< one an epoch, averaged over the trained unets
  LoaderPosition loader;                  ///< what of the epoch was consumed
  int64_t samples_at_last_save = 0;       ///< of this epoch
  int64_t samples_per_epoch = 0;          ///< 0 until an epoch has been through
  /// Of this epoch, between its validation and its end.
  std::optional<double> validation_loss;

  void fields(PositionVisitor& visitor) override;
  void reset() override { *this = {}; }
  /// A checkpoint of the reference has no place of the loader: the sample count is the next best.
  void guess_own_fields() override;
  void restart_epoch() override;
  std::string description() const override;
  int64_t epochs_trained() const override { return next_task == "train" ? epoch : epoch + 1; }
  int64_t sample_of_epoch() const override { return sample; }
  /// Each rank knows where its own lanes stand.
  void gather(ProcessGroup& group) override;

  bool is_best() const;  ///< validation_loss is less than all earlier ones
};

/// The config as it goes into a checkpoint: with all defaults, but in /decoder without nulls and
/// without extensions of ours that are off. The reference builds its Decoder from all it finds
/// there, and refuses both.
std::string decoder_config_for_checkpoint(const std::string& full_json);

class DecoderRun : public TrainingRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  DecoderRun(const LoadedDecoderConfig& loaded, const RunProcess& process);

  /// Says what is to be trained on what. Call it before run().
  void open();
  /// Opens the shards and embeddings, and reads the samples for pictures, so that a fault in them
  /// leaves no files behind. All ranks have to call it, after open(). @throws DataError,
  /// NetworkError; StoppedError on all ranks at a stop signal
  void read_examples();

 private:
  ExitCode run_epochs() override;
  bool train_epoch();
  bool train_group(const DecoderLoader& loader, const std::vector<Batch>& group);
  void train_batch(const Batch& batch, int64_t place, double share);
  void add_validation_losses(const Batch& batch, int64_t place, std::vector<double>& sums);
  bool snapshot_is_due(bool first) const;
  void save_snapshot();
  LogRecord step_values(double samples_per_second) override;
  int64_t samples_per_epoch() const override;
  void validate_epoch();
  void log_validation(const std::vector<double>& sums, int64_t batches, int64_t samples);
  void evaluate_epoch();
  MetricValues compute_metrics();
  void log_metrics(const MetricValues& found);
  void sample_epoch();
  void report_drops(const DecoderLoader& loader, const std::string& split);

  const LoadedDecoderConfig& loaded_;
  const TrainDecoderConfig& config_;
  DecoderPosition& position_;
  DecoderData data_;
  DecoderTrainer& trainer_;
  std::vector<int64_t> trained_unets_;  // numbers from 1
  DecoderPictures pictures_;
  std::unique_ptr<ImageMetrics> metrics_;  // null: none is asked for
};

}  // namespace dalle2
