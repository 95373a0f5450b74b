// SPDX-License-Identifier: MIT
// The main loop of a decoder run: train -> validate -> evaluate -> sample and save, epoch by epoch.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/run_config.h"
#include "run/loaders.h"
#include "run/pth_saving.h"
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

  /// Opens the shards and embeddings, and reads the samples for pictures: what is wrong with them
  /// leaves no files behind. @throws DataError, NetworkError; StoppedError at a stop signal
  void open();
  /// Trains to the last epoch; comes after open(). @return kStopped if a signal asked for a stop;
  /// the state is saved then.
  /// @throws NonFiniteError when too many losses or gradients in a row are no numbers
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

  struct LossAverage {
    double mean = 0;       ///< of the finite ones; NaN if there is none
    int64_t left_out = 0;  ///< losses that are not finite
  };

  ExitCode run_epochs();
  void print_start() const;
  void recall();
  void go_on_from(const std::vector<std::string>& candidates);
  std::optional<FoundCheckpoint> find_checkpoint(const std::vector<std::string>& candidates) const;
  void recall_position(const Cursor& root, const std::string& path);
  void recall_own_state(const Cursor& own);
  void load_examples();
  bool train_epoch();
  bool stop_training(const DecoderLoader& loader);
  static std::optional<Batch> next_batch(DecoderLoader& loader);
  std::vector<Batch> next_group(DecoderLoader& loader);
  bool train_group(const DecoderLoader& loader, const std::vector<Batch>& group);
  void log_training();
  std::vector<double> log_losses(LogRecord& record) const;
  /// Of the last ten updates. Reads them from the device.
  LossAverage average_loss(int64_t unet_number) const;
  /// Tells of skipped updates and acts if they are too many in a row. @param settled false: as far
  /// as is known without waiting for the device
  /// @return false if the run went back: the position is another one
  /// @throws NonFiniteError if it is to stop
  bool guard_updates(bool settled);
  void tell_skipped(int64_t unet, const SkippedUpdates& skipped) const;
  /// The last update of a unet was skipped. Waits for the device.
  bool in_a_streak() const;
  void roll_back(int64_t unet, int64_t in_a_row);
  [[noreturn]] void give_up(int64_t unet, int64_t in_a_row, const std::string& why) const;
  void remember_skipped();
  void forget_later_averages() const;
  static std::string averages_name(int64_t step);
  /// @throws NonFiniteError if weights or averages are not finite
  void check_state() const;
  void validate_epoch();
  void sample_epoch();
  void save_snapshot();
  void save(const std::string& next_task, bool is_best);
  void start_saving(SaveRequest request, Value checkpoint, Value model);
  bool saves_in_background() const;
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
  int64_t averages_saved_at_ = 0;      // steps of the first trained unet
  int64_t roll_backs_ = 0;             // of the whole run
  std::vector<int64_t> told_skipped_;  // of each unet: skipped updates that were told of
  /// The last ten losses of each unet, on the device: reading them synchronises. A checkpoint has
  /// them, so that a resumed run logs what it would have logged.
  std::vector<std::deque<at::Tensor>> recent_losses_;
  PthSaving saving_;  // the last member: it uses the others until it is through
};

}  // namespace dalle2
