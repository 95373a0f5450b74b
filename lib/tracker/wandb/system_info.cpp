// SPDX-License-Identifier: MIT
// The machine of a run, as Weights & Biases shows it.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <dlfcn.h>
#include <array>
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

namespace fs = std::filesystem;

constexpr double kMebi = 1 << 20, kGibi = 1 << 30;

/// The words behind `name` in a file of lines "name: words"; empty where there is none.
std::string line_of(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(name) || colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

/// Of /proc/meminfo, in bytes.
double memory_of_machine(const std::string& name) {
  return 1024 * std::atof(line_of("/proc/meminfo", name).c_str());
}

// Of nvml.h, which does not change: later versions of a function have other names.
struct NvmlUtilization {
  unsigned gpu = 0, memory = 0;  // percent of the time
};
struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;  // bytes
};
constexpr int kTemperatureOfGpu = 0;

}  // namespace

/// Calls a function of NVML. @return whether it is there and has succeeded
template <class... Arguments>
bool SystemStats::nvml(const char* function, Arguments... arguments) const {
  if (nvml_ == nullptr) return false;
  const auto call = reinterpret_cast<int (*)(Arguments...)>(dlsym(nvml_, function));
  return call != nullptr && call(arguments...) == 0;
}

SystemStats::SystemStats() : nvml_(dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)) {
  unsigned count = 0;
  if (!nvml("nvmlInit_v2") || !nvml("nvmlDeviceGetCount_v2", &count)) return;
  gpus_.resize(count);
  for (unsigned i = 0; i < count; ++i) nvml("nvmlDeviceGetHandleByIndex_v2", i, &gpus_[i]);
}

SystemStats::~SystemStats() {
  nvml("nvmlShutdown");
  if (nvml_ != nullptr) dlclose(nvml_);
}

std::string SystemStats::metadata(double start_unix_seconds) const {
  utsname system{};
  ::uname(&system);
  std::error_code error;
  const fs::space_info disk = fs::space(".", error);
  const auto started = static_cast<std::time_t>(start_unix_seconds);
  const auto cores = std::max(std::thread::hardware_concurrency(), 1U);
  Json metadata = {{"os", fmt::format("{}-{}-{}", system.sysname, system.release, system.machine)},
                   {"startedAt", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(started))},
                   {"program", "dalle2-train " + program_version()},
                   {"root", fs::current_path(error).string()},
                   {"host", host_name()},
                   {"executable", fs::read_symlink("/proc/self/exe", error).string()},
                   {"cpu_count", cores},
                   {"cpu_count_logical", cores},
                   {"cpu", {{"model", line_of("/proc/cpuinfo", "model name")}}},
                   {"memory", {{"total", fmt::format("{:.0f}", memory_of_machine("MemTotal"))}}},
                   {"disk",
                    {{"/",
                      {{"total", std::to_string(disk.capacity)},
                       {"used", std::to_string(disk.capacity - disk.free)}}}}}};
  for (void* const gpu : gpus_) {
    std::array<char, 96> name{};
    NvmlMemory memory;
    nvml("nvmlDeviceGetName", gpu, name.data(), static_cast<unsigned>(name.size()));
    nvml("nvmlDeviceGetMemoryInfo", gpu, &memory);
    if (!metadata.contains("gpu")) metadata["gpu"] = name.data();
    metadata["gpu_count"] = gpus_.size();
    metadata["gpu_nvidia"].push_back(
        {{"name", name.data()}, {"memoryTotal", std::to_string(memory.total)}});
  }
  return metadata.dump(2, ' ', false, Json::error_handler_t::replace);
}

WandbItems SystemStats::now() {
  WandbItems items;
  const auto add = [&](const std::string& name, double value) {
    items.emplace_back(name, Json(value).dump());
  };
  const double total = memory_of_machine("MemTotal"), free = memory_of_machine("MemAvailable");
  const double own = static_cast<double>(process_memory("VmRSS"));
  if (total > 0) {
    add("memory_percent", 100 * (1 - free / total));
    add("proc.memory.availableMB", free / kMebi);
    add("proc.memory.percent", 100 * own / total);
  }
  add("proc.memory.rssMB", own / kMebi);
  add("proc.cpu.threads", std::atof(line_of("/proc/self/status", "Threads").c_str()));
  const double cpu = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  const double clock = wall_time_seconds();
  if (at_seconds_ > 0 && clock > at_seconds_)
    add("cpu", 100 * (cpu - cpu_seconds_) / (clock - at_seconds_));
  cpu_seconds_ = cpu;
  at_seconds_ = clock;
  std::error_code error;
  const fs::space_info disk = fs::space(".", error);
  if (!error && disk.capacity > 0) {
    const double used = static_cast<double>(disk.capacity - disk.free);
    add("disk./.usageGB", used / kGibi);
    add("disk./.usagePercent", 100 * used / static_cast<double>(disk.capacity));
  }
  for (size_t i = 0; i < gpus_.size(); ++i) {
    void* const gpu = gpus_[i];
    const std::string of = fmt::format("gpu.{}.", i);
    NvmlUtilization utilization;
    if (nvml("nvmlDeviceGetUtilizationRates", gpu, &utilization)) {
      add(of + "gpu", utilization.gpu);
      add(of + "memory", utilization.memory);
    }
    NvmlMemory memory;
    if (nvml("nvmlDeviceGetMemoryInfo", gpu, &memory) && memory.total > 0) {
      const auto used = static_cast<double>(memory.used);
      add(of + "memoryAllocated", 100 * used / static_cast<double>(memory.total));
      add(of + "memoryAllocatedBytes", used);
    }
    unsigned value = 0, limit = 0;
    if (nvml("nvmlDeviceGetTemperature", gpu, kTemperatureOfGpu, &value)) add(of + "temp", value);
    if (!nvml("nvmlDeviceGetPowerUsage", gpu, &value)) continue;  // milliwatts
    add(of + "powerWatts", value / 1000.0);
    if (!nvml("nvmlDeviceGetEnforcedPowerLimit", gpu, &limit) || limit == 0) continue;
    add(of + "enforcedPowerLimitWatts", limit / 1000.0);
    add(of + "powerPercent", 100.0 * value / limit);
  }
  return items;
}

}  // namespace dalle2
