// SPDX-License-Identifier: MIT
// The cores of this machine, and what this process gets of them.
#pragma once

#include <filesystem>
#include <string>

namespace dalle2 {

/// Cores whose time the control groups of this process, and those above them, let it use: 1.5, for instance. 0: no limit.
/// @param root holds `proc` and `sys`
double core_quota(const std::filesystem::path& root = "/");

/// "Intel(R) Xeon(R) Processor", as /proc/cpuinfo has it; empty where it does not.
std::string processor_name();

/// Seconds that the threads of this process have run, and have waited while others had the cores.
struct CoreTimes {
  double ran = 0, waited = 0;
};
/// Of all threads that the process has now; zeros where the kernel does not count. @param threads a folder for each
CoreTimes core_times(const std::filesystem::path& threads = "/proc/self/task");

}  // namespace dalle2
