// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/this_process.h"
#include "base/untrusted_json.h"
#include "io/formats/event_file.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

constexpr double kMebi = 1 << 20;

/// Of /proc/meminfo, in bytes.
double memory_of_machine(const std::string& name) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return 1024 * std::atof(line.c_str() + line.find(':') + 1);
  }
  return 0;
}

}  // namespace

std::string machine_text(double start_unix_seconds) {
  utsname system{};
  ::uname(&system);
  std::error_code error;
  const auto started = static_cast<std::time_t>(start_unix_seconds);
  const Json text = {
      {"os", fmt::format("{}-{}-{}", system.sysname, system.release, system.machine)},
      {"startedAt", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(started))},
      {"program", "dalle2-train " + program_version()},
      {"root", std::filesystem::current_path(error).string()},
      {"host", host_name()},
      {"cpu_count", std::max(std::thread::hardware_concurrency(), 1U)},
      {"memory", {{"total", fmt::format("{:.0f}", memory_of_machine("MemTotal"))}}}};
  return text.dump(2, ' ', false, Json::error_handler_t::replace);
}

WandbItems MachineFigures::now() {
  const double clock = wall_time_seconds();
  const double cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const double total = memory_of_machine("MemTotal"), free = memory_of_machine("MemAvailable");
  WandbItems items;
  const auto add = [&](const std::string& name, double value) {
    items.emplace_back(name, Json(value).dump());
  };
  if (total > 0) add("memory_percent", 100 * (1 - free / total));
  add("proc.memory.rssMB", static_cast<double>(process_memory("VmRSS")) / kMebi);
  if (at_seconds_ > 0 && clock > at_seconds_)
    add("cpu", 100 * (cpu - cpu_seconds_) / (clock - at_seconds_));
  cpu_seconds_ = cpu;
  at_seconds_ = clock;
  return items;
}

}  // namespace dalle2
