// SPDX-License-Identifier: MIT
#include "run/checkpoints/pth_saving.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace dalle2 {

void PthSaving::start(bool in_background, std::vector<Value> values, Job job) {
  job_.wait();
  std::vector<Write> writers;
  if (!in_background) {
    for (const Value& value : values)
      writers.push_back([&value](const std::string& path) { write_pth(path, value); });
    return job(writers);
  }
  if (copies_.size() < values.size()) copies_.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    copies_[i].take(values[i]);
    writers.push_back([copy = &copies_[i]](const std::string& path) { copy->write(path); });
  }
  job_.start([this, job = std::move(job), writers = std::move(writers)] {
    job(writers);
    for (PthSnapshot& copy : copies_) copy.clear();
  });
}

BackgroundJob::~BackgroundJob() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, "", error.what());
  }
}

void BackgroundJob::start(std::function<void()> work) {
  wait();
  work_ = std::async(std::launch::async, std::move(work));
}

void BackgroundJob::wait() {
  if (work_.valid()) work_.get();
}

void BackgroundJob::check() {
  if (work_.valid() && work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) wait();
}

}  // namespace dalle2
