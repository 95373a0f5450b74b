// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "dist/process_group_backend.h"

namespace dalle2 {

/// A work in any state. On a GPU no host thread waits in it.
class WorkDouble : public BackendWork {
 public:
  explicit WorkDouble(WorkStatus status = {.state = WorkState::kDone})
      : status_(std::move(status)) {}
  void wait() override {}
  WorkStatus status() noexcept override {
    ++asked;
    std::unique_lock lock(mutex_);
    answers_.wait(lock, [this] { return !is_stuck_; });
    return status_;
  }
  void become(WorkStatus status) {
    const std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }
  /// As where another thread holds the lock of the driver.
  void stick(bool is_stuck) {
    {
      const std::lock_guard lock(mutex_);
      is_stuck_ = is_stuck;
    }
    answers_.notify_all();
  }

  std::atomic<int> asked = 0;

 private:
  std::mutex mutex_;
  std::condition_variable answers_;
  WorkStatus status_;
  bool is_stuck_ = false;
};

inline WorkStatus failed_with(const std::string& fault) {
  return {.state = WorkState::kFailed, .fault = fault};
}

}  // namespace dalle2
