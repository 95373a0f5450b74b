// SPDX-License-Identifier: MIT
// How far a run is: one live line on a terminal, a plain line at intervals elsewhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/timer.h"

namespace dalle2 {

/// Where the run stands. A total of 0 is unknown and left out, with the bar and the ETA.
struct ProgressState {
  int64_t epoch = 0;  ///< from 0, as the reference's messages and `{epoch}` count
  int64_t epochs = 0;
  int64_t sample = 0;  ///< samples done in this epoch, over all ranks
  int64_t samples_per_epoch = 0;
  /// One a trained unet; empty until known. The last finite one is shown.
  std::vector<double> losses = {};
  int64_t skipped = 0;  ///< updates, of all unets
};

/// What a line of progress looks like.
struct ProgressStyle {
  int width = 0;  ///< columns of the terminal, the bar takes what is left of them; 0: no bar
  bool with_values = true;  ///< loss, skipped updates and rate; else how far it is alone
};

/// One line: "epoch 2/10 [=====>    ] 512/1,000  loss 0.0213  85.3 samples/s  ETA 1:42".
/// @param samples_per_second 0: not known yet; the line then has no rate and no ETA
std::string progress_line(const ProgressState& state,
                          double samples_per_second,
                          const ProgressStyle& style);

struct ProgressOptions {
  bool quiet = false;
  bool terminal = true;  ///< usually log_is_terminal()
  /// Records are printed as well: progress does not repeat their values, and plain lines are rarer.
  bool beside_records = false;
  /// Seconds on a clock that never goes back (tests give their own).
  std::function<double()> clock = [timer = Timer()] { return timer.seconds(); };
  /// Where lines go.
  std::function<void(const std::string&)> show_live = log_live;
  std::function<void(const std::string&)> print_plain = [](const std::string& line) {
    log_info("train", "{}", line);
  };
};

class Progress {
 public:
  explicit Progress(ProgressOptions options) : options_(std::move(options)) {}
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Call once a step; shows at most one line an interval.
  void update(const ProgressState& state);
  /// What is done between updates, e.g. "validation of epoch 0: 512 samples"; call it as often as it
  /// changes. Elsewhere than on a terminal a line comes at intervals, none at once. Counts as
  /// pause(); the next update(), pause() or finish() ends it.
  void stage(const std::string& text);
  /// Leaves out the time until the next update() from the rate (validation, sampling, saving).
  void pause();
  /// Prints the last state as a plain line and clears the live one.
  void finish();

 private:
  void measure(double now);
  void print();
  void end_stage();
  double interval() const;

  ProgressOptions options_;
  ProgressState state_;
  bool has_state_ = false;
  bool printed_ = false;  ///< state_ is in a plain line
  bool shown_once_ = false;
  double shown_at_ = 0;
  bool in_stage_ = false;
  double stage_shown_at_ = 0;
  bool measuring_ = false;
  double measured_at_ = 0;
  int64_t measured_samples_ = 0;
  double rate_ = 0;  ///< samples a second, smoothed over some seconds
};

}  // namespace dalle2
