// SPDX-License-Identifier: MIT
// Work on a thread of its own, one piece at a time.
#pragma once

#include <functional>
#include <future>

namespace dalle2 {

class BackgroundJob {
 public:
  BackgroundJob() = default;
  /// Waits. An error that nobody has asked for is logged.
  ~BackgroundJob();
  BackgroundJob(const BackgroundJob&) = delete;
  BackgroundJob& operator=(const BackgroundJob&) = delete;

  /// Waits for the previous work, then begins. @throws what the previous work threw
  void start(std::function<void()> work);
  /// @throws what the work threw, once
  void wait();
  /// The same without waiting: an error of work that is still running is thrown by a later call.
  void check();

 private:
  std::future<void> work_;
};

}  // namespace dalle2
