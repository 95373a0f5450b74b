// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

namespace dalle2 {

/// Wall-clock seconds since construction or the last restart().
class Timer {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace dalle2
