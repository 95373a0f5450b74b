// SPDX-License-Identifier: MIT
// The main loop of a decoder run: train -> validate -> evaluate -> sample and save, epoch by epoch.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/background_job.h"
#include "base/error.h"
#include "checkpoint/pth.h"
#include "config/run_config.h"
#include "run/loaders.h"
#include "tracker/progress.h"
#include "tracker/tracker.h"
#include "trainer/decoder_trainer.h"

namespace dalle2 {

/// Where a run stands; all of it is in every checkpoint (the names are the reference's).
struct DecoderPosition {
  int64_t epoch = 0;
  std::string next_task = "train";        ///< train, val, eval or sample
  int64_t sample = 0;                     ///< samples of this epoch, over all ranks
  int64_t samples_seen = 0;               ///< samples of the whole run
  int64_t samples_at_last_save = 0;       ///< of this epoch
  LoaderPosition loader;                  ///< what of the epoch was consumed
  int64_t iteration = 0;                  ///< batches of this epoch
  std::vector<double> validation_losses;  ///< one an epoch, averaged over the trained unets
};

class DecoderRun {
 public:
  /// Builds data, model, trainer and tracker; nothing is trained or written yet.
  /// @throws ConfigError, DataError
  DecoderRun(const LoadedDecoderConfig& loaded, bool quiet);
  ~DecoderRun();

  /// Trains to the last epoch. @return kStopped if a signal asked for a stop; the state is saved
  /// then.
  /// @throws NonFiniteError when a loss is no number any more
  ExitCode run();

 private:
  struct Examples {
    Batch batch;
    std::string caption_prefix, section;
  };

  struct FoundCheckpoint {
    Value checkpoint;
    std::string path;
  };

  ExitCode run_epochs();
  void print_start() const;
  void recall();
  std::optional<FoundCheckpoint> find_checkpoint() const;
  void recall_position(const Cursor& root);
  void recall_own_state(const Cursor& own);
  void load_examples();
  void train_epoch();
  void stop_training(const DecoderLoader& loader);
  static std::optional<Batch> next_batch(DecoderLoader& loader);
  std::vector<Batch> next_group(DecoderLoader& loader);
  bool train_group(const std::vector<Batch>& group);
  void log_training();
  double average_loss(int64_t unet_number) const;
  /// The average loss of each trained unet. Reads them from the device.
  /// @throws NonFiniteError if one is no number
  std::vector<double> finite_losses() const;
  void validate_epoch();
  void sample_epoch();
  void save_snapshot();
  void save(const std::string& next_task, bool is_best);
  void start_saving(SaveRequest request, const Value& checkpoint, const Value& model);
  bool averages_are_due() const;
  void save_averages();
  void log_samples(const Examples& examples);
  at::Generator generator(const std::string& purpose, int64_t step) const;
  bool stop_asked();
  void report_drops(const DecoderLoader& loader, const std::string& split);

  const LoadedDecoderConfig& loaded_;
  const TrainDecoderConfig& config_;
  at::Device device_;
  DecoderData data_;
  std::unique_ptr<DecoderTrainer> trainer_;
  Tracker tracker_;
  Progress progress_;
  DecoderPosition position_;
  std::vector<int64_t> trained_unets_;  // numbers from 1
  std::vector<Examples> examples_;
  std::optional<double> validation_loss_;  // of this epoch, if it was validated in this process
  int64_t samples_per_epoch_ = 0;          // 0 until an epoch has been through
  double samples_per_second_ = 0;
  StageTimes stage_times_;
  bool stopped_ = false;
  int64_t averages_saved_at_ = 0;  // steps of the first trained unet
  /// The last ten losses of each unet, on the device: reading them synchronises. A checkpoint has
  /// them, so that a resumed run logs what it would have logged.
  std::vector<std::deque<at::Tensor>> recent_losses_;
  PthSnapshot saved_checkpoint_, saved_model_, saved_averages_;
  BackgroundJob saving_;  // the last member: it uses the others until it is through
};

}  // namespace dalle2
