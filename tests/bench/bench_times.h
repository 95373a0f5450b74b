// SPDX-License-Identifier: MIT
// Wall time and processor time of a piece of work.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

namespace dalle2 {

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Processor time of all threads of the process.
inline double cpu_seconds() {
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Times {
  std::vector<double> wall, cpu;

  void add(const std::function<void()>& work) {
    const double wall_begin = wall_seconds(), cpu_begin = cpu_seconds();
    work();
    wall.push_back(wall_seconds() - wall_begin);
    cpu.push_back(cpu_seconds() - cpu_begin);
  }
};

}  // namespace dalle2
