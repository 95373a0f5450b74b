// SPDX-License-Identifier: MIT
#include "data/in_parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dalle2 {

void in_parallel(size_t count, int64_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = count;
  std::exception_ptr error;  // of work(failed)
  const auto run = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          error = std::current_exception();
        }
        next = count;
      }
    }
  };
  std::vector<std::jthread> others;
  const auto most = std::min(static_cast<int64_t>(count), threads);
  try {
    for (int64_t i = 1; i < most; ++i) others.emplace_back(run);
  } catch (const std::system_error&) {  // no more threads for this process: fewer will do
  }
  run();
  others.clear();  // waits for them
  if (error) std::rethrow_exception(error);
}

}  // namespace dalle2
