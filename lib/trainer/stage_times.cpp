// SPDX-License-Identifier: MIT
#include "trainer/stage_times.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace dalle2 {
namespace {

constexpr double kSecondsPerMillisecond = 1e-3;

}  // namespace

bool StageTimes::on_device(Stage stage) const {
  return !device_.is_cpu() && stage != Stage::kData && stage != Stage::kSave;
}

void StageTimes::begin(Stage stage) {
  timer_.restart();
  if (!on_device(stage)) return;
  const auto event = [&] {
    return c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);  // with a time stamp
  };
  open_.push_back({stage, event(), event()});
  open_.back().begin.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void StageTimes::end(Stage stage) {
  if (!on_device(stage)) {
    seconds_[static_cast<size_t>(stage)] += timer_.seconds();
    return;
  }
  open_.back().end.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  passing_.push_back(std::move(open_.back()));
  open_.pop_back();
}

void StageTimes::count_step() {
  ++steps_;
  collect();
}

void StageTimes::collect() {
  while (!passing_.empty() && passing_.front().end.query()) {
    const DeviceSpan& span = passing_.front();
    seconds_[static_cast<size_t>(span.stage)] +=
        span.begin.elapsedTime(span.end) * kSecondsPerMillisecond;
    passing_.pop_front();
  }
}

std::vector<std::pair<std::string, double>> StageTimes::take() {
  collect();
  std::vector<std::pair<std::string, double>> averages;
  if (steps_ > 0) {
    for (size_t i = 0; i < seconds_.size(); ++i)
      averages.emplace_back(kStageNames[i], seconds_[i] / static_cast<double>(steps_));
  }
  seconds_ = {};
  steps_ = 0;
  return averages;
}

}  // namespace dalle2
