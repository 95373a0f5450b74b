// SPDX-License-Identifier: MIT
#include "tracker/log/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace dalle2 {
namespace {

constexpr double kLiveSeconds = 0.1, kPlainSeconds = 10, kPlainSecondsBesideRecords = 60;
constexpr double kRateSeconds = 10;      // the rate forgets what is older than about this
constexpr double kMeasureSeconds = 0.2;  // shorter spans say little about it
constexpr int kRateDigits = 3;
constexpr int kMaxBar = 30;
constexpr int kMinBar = 8;

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

std::string values_text(const ProgressState& state, double samples_per_second) {
  std::string text;
  if (!state.losses.empty()) {
    text += "  loss";
    for (const double loss : state.losses)
      text += std::isfinite(loss) ? " " + short_number(loss) : " -";
  }
  if (state.skipped > 0) text += fmt::format("  {} skipped", with_commas(state.skipped));
  if (samples_per_second > 0) {
    text += fmt::format("  {} samples/s", short_number(samples_per_second, kRateDigits));
  }
  return text;
}

}  // namespace

std::string progress_line(const ProgressState& state,
                          double samples_per_second,
                          const ProgressStyle& style) {
  std::string epoch = fmt::format("epoch {}", state.epoch);
  if (state.epochs > 0) epoch += fmt::format("/{}", state.epochs);
  const bool has_total = state.samples_per_epoch > 0;
  std::string rest = " " + with_commas(state.sample);
  if (has_total) rest += "/" + with_commas(state.samples_per_epoch);
  std::string values;
  if (style.with_values) values = values_text(state, samples_per_second);
  if (samples_per_second > 0 && has_total && state.epochs > 0) {
    values += "  ETA " + human_duration(remaining_seconds(state, samples_per_second));
  }
  // The last column stays free: a full line would wrap on some terminals.
  const int space = style.width - 2 - static_cast<int>((epoch + rest + values).size());
  if (has_total && space >= kMinBar) {
    return epoch + " " + bar(done_fraction(state), std::min(space, kMaxBar)) + rest + values;
  }
  if (style.width <= 0) return epoch + "," + rest + " samples" + values;
  return clipped(epoch + "," + rest + (has_total ? "" : " samples") + values,
                 std::max(1, style.width - 1));
}

Progress::~Progress() {
  if (!options_.quiet && options_.terminal && (has_state_ || in_stage_)) options_.show_live("");
}

double Progress::interval() const {
  if (options_.terminal) return kLiveSeconds;
  return options_.beside_records ? kPlainSecondsBesideRecords : kPlainSeconds;
}

void Progress::update(const ProgressState& state) {
  end_stage();
  const double now = options_.clock();
  const bool new_epoch =
      has_state_ && (state.epoch != state_.epoch || state.sample < state_.sample);
  if (new_epoch) measuring_ = false;
  const std::vector<double> last_losses = std::exchange(state_, state).losses;
  if (state_.losses.empty()) state_.losses = last_losses;
  for (size_t i = 0; i < std::min(last_losses.size(), state_.losses.size()); ++i) {
    if (!std::isfinite(state_.losses[i])) state_.losses[i] = last_losses[i];
  }
  has_state_ = true;
  printed_ = false;
  measure(now);
  if (options_.quiet) return;
  const bool first = !std::exchange(shown_once_, true);
  if (!first && now - shown_at_ < interval()) return;
  shown_at_ = now;
  // The record that is printed of the first step says enough.
  if (first && options_.beside_records && !options_.terminal) return;
  if (options_.terminal) {
    const int width = terminal_columns(STDOUT_FILENO);
    options_.show_live(
        progress_line(state_, rate_, {.width = width, .with_values = !options_.beside_records}));
  } else {
    print();
  }
}

void Progress::stage(const std::string& text) {
  measuring_ = false;
  if (options_.quiet) return;
  const double now = options_.clock();
  if (!std::exchange(in_stage_, true)) stage_shown_at_ = options_.terminal ? -kLiveSeconds : now;
  const double wait = options_.terminal ? kLiveSeconds : kPlainSeconds;
  if (now - stage_shown_at_ < wait) return;
  stage_shown_at_ = now;
  options_.terminal ? options_.show_live(text) : options_.print_plain(text);
}

void Progress::end_stage() {
  if (std::exchange(in_stage_, false) && options_.terminal) options_.show_live("");
}

void Progress::pause() {
  measuring_ = false;
  end_stage();
}

void Progress::finish() {
  end_stage();
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
  options_.print_plain(
      progress_line(state_, rate_, {.width = 0, .with_values = !options_.beside_records}));
  printed_ = true;
}

}  // namespace dalle2
