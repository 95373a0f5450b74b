// SPDX-License-Identifier: MIT
#include "tracker/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "base/text.h"

namespace dalle2 {
namespace {

constexpr double kRateSeconds = 10;      // the rate forgets what is older than about this
constexpr double kMeasureSeconds = 0.2;  // shorter spans say little about it
constexpr int kMaxBar = 30;
constexpr int kMinBar = 8;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int terminal_width() {
  winsize size = {};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double done_fraction(const ProgressState& state) {
  const double fraction =
      static_cast<double>(state.sample) / static_cast<double>(state.samples_per_epoch);
  return std::clamp(fraction, 0.0, 1.0);
}

std::string bar(double fraction, int size) {
  const int inner = size - 2;
  const int filled = static_cast<int>(fraction * inner);
  std::string text(static_cast<size_t>(filled), '=');
  if (filled < inner) text += '>';
  text.resize(static_cast<size_t>(inner), ' ');
  return "[" + text + "]";
}

/// Seconds to the end of the last epoch.
double remaining_seconds(const ProgressState& state, double samples_per_second) {
  const int64_t later_epochs = std::max<int64_t>(0, state.epochs - state.epoch - 1);
  const int64_t here = std::max<int64_t>(0, state.samples_per_epoch - state.sample);
  return static_cast<double>(later_epochs * state.samples_per_epoch + here) / samples_per_second;
}

}  // namespace

std::string progress_line(const ProgressState& state, double samples_per_second, int width) {
  std::string epoch = fmt::format("epoch {}", state.epoch);
  if (state.epochs > 0) epoch += fmt::format("/{}", state.epochs);
  std::string rest = " " + with_commas(state.sample);
  if (state.samples_per_epoch > 0) rest += "/" + with_commas(state.samples_per_epoch);
  if (!state.losses.empty()) {
    rest += "  loss";
    for (const double loss : state.losses)
      rest += std::isfinite(loss) ? fmt::format(" {:.4g}", loss) : " -";
  }
  if (state.skipped > 0) rest += fmt::format("  {} skipped", with_commas(state.skipped));
  if (samples_per_second > 0) {
    rest +=
        fmt::format("  {:.{}f} samples/s", samples_per_second, samples_per_second < 100 ? 1 : 0);
    if (state.samples_per_epoch > 0 && state.epochs > 0) {
      rest += "  ETA " + human_duration(remaining_seconds(state, samples_per_second));
    }
  }
  if (width <= 0) return epoch + (state.samples_per_epoch > 0 ? "," : ", sample") + rest;
  // The last column stays free: a full line would wrap on some terminals.
  const int space = width - 2 - static_cast<int>(epoch.size() + rest.size());
  std::string line = epoch;
  if (state.samples_per_epoch > 0 && space >= kMinBar) {
    line += " " + bar(done_fraction(state), std::min(space, kMaxBar));
  }
  line += rest;
  if (static_cast<int>(line.size()) >= width)
    line.resize(static_cast<size_t>(std::max(1, width - 1)));
  return line;
}

Progress::Progress(ProgressOptions options) : options_(std::move(options)) {
  if (!options_.clock) options_.clock = steady_seconds;
  if (!options_.show_live) options_.show_live = log_live;
  if (!options_.print_plain) {
    options_.print_plain = [](const std::string& line) { log_info("train", "{}", line); };
  }
}

Progress::~Progress() {
  if (!options_.quiet && options_.terminal && has_state_) options_.show_live("");
}

void Progress::update(const ProgressState& state) {
  const double now = options_.clock();
  const bool new_epoch =
      has_state_ && (state.epoch != state_.epoch || state.sample < state_.sample);
  if (new_epoch) measuring_ = false;
  const std::vector<double> last_losses = std::exchange(state_, state).losses;
  for (size_t i = 0; i < std::min(last_losses.size(), state_.losses.size()); ++i) {
    if (!std::isfinite(state_.losses[i])) state_.losses[i] = last_losses[i];
  }
  has_state_ = true;
  printed_ = false;
  measure(now);
  if (options_.quiet) return;
  const double interval =
      options_.terminal ? options_.live_interval_seconds : options_.plain_interval_seconds;
  if (shown_once_ && now - shown_at_ < interval) return;
  shown_once_ = true;
  shown_at_ = now;
  if (options_.terminal) {
    options_.show_live(progress_line(state_, rate_, terminal_width()));
  } else {
    print();
  }
}

void Progress::pause() {
  measuring_ = false;
}

void Progress::finish() {
  if (options_.quiet || !has_state_) return;
  if (options_.terminal) options_.show_live("");
  if (!printed_) print();
}

void Progress::measure(double now) {
  if (!measuring_) {
    measuring_ = true;
    measured_at_ = now;
    measured_samples_ = state_.sample;
    return;
  }
  const double seconds = now - measured_at_;
  if (seconds < kMeasureSeconds) return;
  const double rate = static_cast<double>(state_.sample - measured_samples_) / seconds;
  const double keep = rate_ > 0 ? std::exp(-seconds / kRateSeconds) : 0;
  rate_ = keep * rate_ + (1 - keep) * rate;
  measured_at_ = now;
  measured_samples_ = state_.sample;
}

void Progress::print() {
  options_.print_plain(progress_line(state_, rate_, /*width=*/0));
  printed_ = true;
}

}  // namespace dalle2
