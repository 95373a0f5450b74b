// SPDX-License-Identifier: MIT
#include "run/device/cores.h"

#include <algorithm>
#include <fstream>

namespace dalle2 {

namespace fs = std::filesystem;

double core_quota(const fs::path& root) {
  double least = 0;
  const auto look_at = [&](const fs::path& group) {
    double quota = 0, period = 0;  // of a period, both in microseconds; "max" or -1 is no limit
    std::ifstream both(group / "cpu.max");
    if (!(both >> quota >> period) && !(std::ifstream(group / "cpu.cfs_quota_us") >> quota &&
                                        std::ifstream(group / "cpu.cfs_period_us") >> period)) {
      return;
    }
    if (quota <= 0 || period <= 0) return;
    least = least == 0 ? quota / period : std::min(least, quota / period);
  };
  std::ifstream groups(root / "proc/self/cgroup");
  // Version 1: "4:cpu,cpuacct:/path"; version 2: "0::/path". A container may show its own group as the topmost.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_first_version = !controllers.empty();
    if (is_first_version && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    for (const char* mount : {controllers.c_str(), is_first_version ? "cpu" : "unified"}) {
      const fs::path top = root / "sys/fs/cgroup" / mount;
      look_at(top);
      for (fs::path group = line.substr(second + 2); !group.empty(); group = group.parent_path()) {
        look_at(top / group);
      }
    }
  }
  return least;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

CoreTimes core_times(const fs::path& threads) {
  CoreTimes times;
  std::error_code ignored;
  for (fs::directory_iterator at(threads, ignored), end; at != end; at.increment(ignored)) {
    double ran = 0, waited = 0;  // nanoseconds; a thread may have ended meanwhile
    if (!(std::ifstream(at->path() / "schedstat") >> ran >> waited)) continue;
    times.ran += 1e-9 * ran;
    times.waited += 1e-9 * waited;
  }
  return times;
}

}  // namespace dalle2
