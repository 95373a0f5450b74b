// SPDX-License-Identifier: MIT
// What the loop of every kind of run needs: the device, the tracker, the progress line, the times
// of a step, the request to stop, and random numbers by address.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string_view>

#include "config/tracker_config.h"
#include "config/train_options.h"
#include "optim/precision.h"
#include "run/run_position.h"
#include "tracker/progress.h"
#include "tracker/tracker.h"
#include "trainer/step_times.h"

namespace dalle2 {

struct SessionOptions {
  const TrackerConfig& tracker;
  const SharedTrainConfig& train;
  int64_t seed = 0;
  bool quiet = false;
  int64_t rank = 0;
};

/// The /train/device of a config, and the process made ready for it (deterministic algorithms).
/// @throws ConfigError for a device that is not there
at::Device prepare_device(const SharedTrainConfig& train);

class RunSession {
 public:
  /// Checks what can be checked of the tracker's config, and logs program, device and threads;
  /// writes nothing.
  /// @param position gives the placeholders that save targets may name
  /// @throws ConfigError
  RunSession(const SessionOptions& options, RunPosition& position);

  const at::Device& device() const { return device_; }
  Tracker& tracker() { return tracker_; }
  const Tracker& tracker() const { return tracker_; }
  Progress& progress() { return progress_; }
  StepTimes& times() { return times_; }
  bool quiet() const { return quiet_; }

  /// Addressed by seed, purpose, epoch, step and rank.
  at::Generator generator(std::string_view purpose, int64_t epoch, int64_t step) const;

  /// Whether a signal asks for a stop. Says so in the log the first time.
  bool stop_asked();
  /// Whether stop_asked() has answered yes.
  bool stopped() const { return stopped_; }
  /// For use inside a validation or a sampling. @throws StoppedError if stop_asked()
  void throw_if_stop_asked();

  /// Logs the precision if it was chosen or asked for.
  void print_precision(const PrecisionChoice& precision) const;

 private:
  at::Device device_;
  int64_t seed_, rank_;
  bool quiet_;
  Tracker tracker_;
  Progress progress_;
  StepTimes times_;
  bool stopped_ = false;
};

}  // namespace dalle2
