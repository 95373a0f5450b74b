// SPDX-License-Identifier: MIT
#include "run/checkpoints/pth_saving.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace dalle2 {

void PthSaving::start(bool in_background, std::vector<Value> values, Job job) {
  wait();
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
  work_ =
      std::async(std::launch::async, [this, job = std::move(job), writers = std::move(writers)] {
        job(writers);
        for (PthSnapshot& copy : copies_) copy.clear();
      });
}

PthSaving::~PthSaving() {
  try {
    wait();
  } catch (const std::exception& error) {
    log_line(LogLevel::kError, "", error.what());
  }
}

void PthSaving::wait() {
  if (work_.valid()) work_.get();
}

void PthSaving::check() {
  if (work_.valid() && work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) wait();
}

}  // namespace dalle2
