// SPDX-License-Identifier: MIT
// Where the time of a training step goes.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/util/ScopeExit.h>

#include <array>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/timer.h"

namespace dalle2 {

/// The phases of a step, in their order. Data is waiting for the next batch; optimizer is clipping,
/// the update and the averages.
enum class StepPhase { kData, kCopy, kForward, kBackward, kOptimizer, kSave };
inline constexpr std::array kPhaseNames = {
    "data", "copy", "forward", "backward", "optimizer", "save"};

/// Adds up the seconds of each phase. What runs on the host (data and save everywhere, on the CPU
/// all phases) is timed by the clock. Work handed to a GPU is timed by events in its stream, which
/// are looked at when they have passed: nothing ever waits for them.
class StepTimes {
 public:
  explicit StepTimes(const c10::Device& device) : device_(device) {}

  void begin(StepPhase phase);
  void end(StepPhase phase);
  void count_step();

  /// Mean seconds per step of each phase since the last call, then starts over; empty if there was
  /// no step. Work that a GPU has not done yet counts the next time.
  std::vector<std::pair<std::string, double>> take();

 private:
  struct DeviceSpan {
    StepPhase phase;
    c10::Event begin, end;
  };

  bool on_device(StepPhase phase) const;
  void collect();

  c10::Device device_;
  Timer timer_;
  std::deque<DeviceSpan> open_, passing_;
  std::array<double, kPhaseNames.size()> seconds_{};
  int64_t steps_ = 0;
};

/// Runs `work` as a part of `phase`; `times` may be null.
template <class Work>
auto timed(StepTimes* times, StepPhase phase, Work&& work) {
  if (times != nullptr) times->begin(phase);
  const auto end = c10::make_scope_exit([&] {
    if (times != nullptr) times->end(phase);
  });
  return work();
}

}  // namespace dalle2
