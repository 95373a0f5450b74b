// SPDX-License-Identifier: MIT
// Configs of toy runs, and what is compared of them.
#pragma once

#include <csignal>

#include "base/stop_signal.h"
#include "checkpoint/pickle/pth.h"
#include "io/files/atomic_file.h"
#include "run/toy_run.h"
#include "support/temp_dir.h"
#include "tracker/log/log_file.h"
#include "trainer/state_bits.h"

namespace dalle2::test {

inline LocalLoadConfig load_from(const std::string& path) {
  LocalLoadConfig load;
  load.file_path = path;
  return load;
}

inline LocalSaveConfig save_latest_to(const std::string& path) {
  LocalSaveConfig save;
  save.save_latest_to = path;
  return save;
}

/// A run in `folder` that resumes by itself, 3 epochs of 5 steps.
inline ToyConfig toy_config(const std::string& folder) {
  ToyConfig config;
  config.train.epochs = 3;
  config.train.log_every_n_updates = 1;
  config.tracker.data_path = folder + "/out";
  config.tracker.overwrite_data_path = true;
  ConsoleLogConfig log;
  log.auto_resume = true;
  config.tracker.log = LogConfig(log);
  LocalLoadConfig load = load_from(folder + "/latest.pth");
  load.only_auto_resume = true;
  config.tracker.load = load;
  LocalSaveConfig save = save_latest_to(folder + "/latest.pth");
  save.save_best_to = folder + "/best.pth";
  config.tracker.save = {save};
  return config;
}

/// The numbers under `key` in a log, in order, as its readers see it.
inline std::vector<double> logged(const std::string& data_path, const std::string& key) {
  const RunLog log = read_run_log(data_path + "/log.jsonl");
  const LogSeries* series = find_series(log, key);
  return series == nullptr ? std::vector<double>{} : series->values;
}

/// A request to stop, withdrawn at the end of a test.
class StopRequest {
 public:
  StopRequest() { clear_stop_request(); }
  ~StopRequest() {
    clear_stop_request();
    uninstall_stop_signals();
  }
  /// As a user's `kill` would.
  void make() {
    install_stop_signals();
    std::raise(SIGTERM);
  }
};

/// Runs until it is asked to stop at this step.
inline void run_to_stop(ToyRun& run, int64_t last) {
  StopRequest stop;
  run.before_step = [&](int64_t step, at::Tensor&) {
    if (step == last) stop.make();
  };
  CHECK(run.run() == ExitCode::kStopped);
}

/// Runs to the end. @return the first step that the run trains
inline int64_t first_step_of(ToyRun& run) {
  int64_t first = -1;
  run.before_step = [&](int64_t step, at::Tensor&) {
    if (first < 0) first = step;
  };
  CHECK(run.run() == ExitCode::kDone);
  return first;
}

}  // namespace dalle2::test
