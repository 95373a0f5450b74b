// SPDX-License-Identifier: MIT
#include "base/background_job.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace dalle2 {

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
