// SPDX-License-Identifier: MIT
#include "run/device/compute_threads.h"

#include <catch2/catch.hpp>
#include <map>

#include "support/temp_dir.h"

namespace dalle2 {
namespace {

/// The quota of a machine with these files.
double quota_of(const std::map<std::string, std::string>& files) {
  const test::TempDir root;
  for (const auto& [name, content] : files) {
    const std::filesystem::path path = std::filesystem::path(root.path()) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  return core_quota(root.path());
}

TEST_CASE("the quota of cores is the least of the groups of the process, in both versions") {
  CHECK(quota_of({}) == 0);
  const std::string v2 = "sys/fs/cgroup/", v1 = "sys/fs/cgroup/cpu,cpuacct/";
  CHECK(quota_of({{"proc/self/cgroup", "0::/a/b\n"},
                  {v2 + "a/b/cpu.max", "max 100000\n"},
                  {v2 + "a/cpu.max", "350000 100000\n"}}) == 3.5);
  CHECK(quota_of({{"proc/self/cgroup", "0::/a/b\n"},
                  {v2 + "a/b/cpu.max", "50000 100000\n"},
                  {v2 + "other/cpu.max", "10000 100000\n"},
                  {v2 + "a/cpu.max", "350000 100000\n"}}) == 0.5);
  // A container that shows its own group as the topmost, and one whose path leads out of what it sees.
  CHECK(quota_of({{"proc/self/cgroup", "0::/docker/0123\n"}, {v2 + "cpu.max", "200000 100000"}}) ==
        2);
  CHECK(quota_of({{"proc/self/cgroup", "0::/../x\n"}, {v2 + "cpu.max", "200000 100000"}}) == 2);
  CHECK(quota_of({{"proc/self/cgroup", "9:memory:/m\n4:cpu,cpuacct:/a/b\n0::/\n"},
                  {v1 + "a/b/cpu.cfs_quota_us", "-1"},
                  {v1 + "a/b/cpu.cfs_period_us", "100000"},
                  {v1 + "a/cpu.cfs_quota_us", "150000"},
                  {v1 + "a/cpu.cfs_period_us", "100000"},
                  {"sys/fs/cgroup/memory/m/cpu.cfs_quota_us", "1000"},
                  {"sys/fs/cgroup/memory/m/cpu.cfs_period_us", "100000"}}) == 1.5);
  CHECK(quota_of({{"proc/self/cgroup", "4:cpuset:/\n5:cpu:/\nnot a group\n"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000"},
                  {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}}) == 4);
  CHECK(quota_of({{"proc/self/cgroup", "0::/\n"}, {v2 + "cpu.max", "nonsense"}}) == 0);
}

TEST_CASE("the times of the threads are those of all that the process has") {
  const test::TempDir folder;
  for (const char* thread : {"1", "2", "3"}) {
    std::filesystem::create_directory(std::filesystem::path(folder.path()) / thread);
  }
  std::ofstream(folder.path() + "/1/schedstat") << "2000000000 500000000 7";
  std::ofstream(folder.path() + "/2/schedstat") << "1000000000 250000000 7";
  const CoreTimes times = core_times(folder.path());
  CHECK(times.ran == Approx(3));
  CHECK(times.waited == Approx(0.75));
  CHECK(core_times(folder.path() + "/none").ran == 0);
}

}  // namespace
}  // namespace dalle2
