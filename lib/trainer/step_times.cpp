// SPDX-License-Identifier: MIT
#include "trainer/step_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dalle2 {
namespace {

constexpr double kSecondsPerMillisecond = 1e-3;

}  // namespace

bool StepTimes::on_device(StepPhase phase) const {
  return !device_.is_cpu() && phase != StepPhase::kData && phase != StepPhase::kSave;
}

void StepTimes::begin(StepPhase phase) {
  timer_.restart();
  if (!on_device(phase)) return;
  const auto event = [&] {
    return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time stamp
  };
  open_.push_back({phase, event(), event()});
  open_.back().begin.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void StepTimes::end(StepPhase phase) {
  if (!on_device(phase)) {
    seconds_[static_cast<size_t>(phase)] += timer_.seconds();
    return;
  }
  open_.back().end.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  passing_.push_back(std::move(open_.back()));
  open_.pop_back();
}

void StepTimes::count_step() {
  ++steps_;
  collect();
}

void StepTimes::collect() {
  while (!passing_.empty() && passing_.front().end.query()) {
    const DeviceSpan& span = passing_.front();
    seconds_[static_cast<size_t>(span.phase)] +=
        span.begin.elapsedTime(span.end) * kSecondsPerMillisecond;
    passing_.pop_front();
  }
}

std::vector<std::pair<std::string, double>> StepTimes::take() {
  collect();
  std::vector<std::pair<std::string, double>> averages;
  if (steps_ > 0) {
    for (size_t i = 0; i < seconds_.size(); ++i)
      averages.emplace_back(kPhaseNames[i], seconds_[i] / static_cast<double>(steps_));
  }
  seconds_ = {};
  steps_ = 0;
  return averages;
}

}  // namespace dalle2
