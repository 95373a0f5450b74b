// SPDX-License-Identifier: MIT
#include "tracker/wandb/system_info.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <dlfcn.h>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/this_process.h"
#include "base/untrusted_json.h"

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

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::string system_metadata(double start_unix_seconds, const std::vector<Gpu>& gpus) {
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
  if (!gpus.empty()) {
    metadata["gpu"] = gpus.front().name;
    metadata["gpu_count"] = gpus.size();
    for (const Gpu& gpu : gpus) {
      metadata["gpu_nvidia"].push_back(
          {{"name", gpu.name}, {"memoryTotal", std::to_string(gpu.memory_bytes)}});
    }
  }
  return metadata.dump(2, ' ', false, Json::error_handler_t::replace);
}

WandbItems SystemStats::now() {
  WandbItems items;
  const auto add = [&](const char* name, double value) {
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
  const double cpu = cpu_seconds(), clock = clock_seconds();
  if (at_seconds_ > 0) add("cpu", 100 * (cpu - cpu_seconds_) / (clock - at_seconds_));
  cpu_seconds_ = cpu;
  at_seconds_ = clock;
  std::error_code error;
  const fs::space_info disk = fs::space(".", error);
  if (!error && disk.capacity > 0) {
    const double used = static_cast<double>(disk.capacity - disk.free);
    add("disk./.usageGB", used / kGibi);
    add("disk./.usagePercent", 100 * used / static_cast<double>(disk.capacity));
  }
  for (const GpuFigure& figure : nvml_.now()) add(figure.name.c_str(), figure.value);
  return items;
}

struct Nvml::Library {
  // Of nvml.h, which does not change: later versions of a function have other names.
  using Result = int;  // 0: success
  using Device = void*;
  struct Utilization {
    unsigned gpu = 0, memory = 0;  // percent of the time
  };
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;  // bytes
  };
  static constexpr int kTemperatureOfGpu = 0;

  ~Library() {
    if (started) shutdown();
    if (module != nullptr) dlclose(module);
  }

  /// @return false if there is nothing to ask
  bool open() {
    module = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (module == nullptr) return false;
    const bool is_whole =
        find("nvmlInit_v2", init) && find("nvmlShutdown", shutdown) &&
        find("nvmlDeviceGetCount_v2", count) && find("nvmlDeviceGetHandleByIndex_v2", handle) &&
        find("nvmlDeviceGetName", name) && find("nvmlDeviceGetUtilizationRates", utilization) &&
        find("nvmlDeviceGetMemoryInfo", memory) && find("nvmlDeviceGetTemperature", temperature) &&
        find("nvmlDeviceGetPowerUsage", power) &&
        find("nvmlDeviceGetEnforcedPowerLimit", power_limit);
    if (!is_whole || init() != 0) return false;
    started = true;
    unsigned number = 0;
    if (count(&number) != 0) return false;
    for (unsigned i = 0; i < number; ++i) {
      Device device = nullptr;
      if (handle(i, &device) == 0) devices.push_back({i, device});
    }
    return true;
  }

  template <class Function>
  bool find(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(module, symbol));
    return function != nullptr;
  }

  void* module = nullptr;
  bool started = false;
  struct Numbered {
    unsigned number;
    Device device;
  };
  std::vector<Numbered> devices;

  Result (*init)() = nullptr;
  Result (*shutdown)() = nullptr;
  Result (*count)(unsigned*) = nullptr;
  Result (*handle)(unsigned, Device*) = nullptr;
  Result (*name)(Device, char*, unsigned) = nullptr;
  Result (*utilization)(Device, Utilization*) = nullptr;
  Result (*memory)(Device, Memory*) = nullptr;
  Result (*temperature)(Device, int, unsigned*) = nullptr;
  Result (*power)(Device, unsigned*) = nullptr;        // milliwatts
  Result (*power_limit)(Device, unsigned*) = nullptr;  // milliwatts
};

Nvml::Nvml() : library_(std::make_unique<Library>()) {
  if (!library_->open()) library_.reset();
}

Nvml::~Nvml() = default;

std::vector<Gpu> Nvml::gpus() const {
  std::vector<Gpu> gpus;
  if (!library_) return gpus;
  for (const auto& [number, device] : library_->devices) {
    std::array<char, 96> name{};
    Library::Memory memory;
    if (library_->name(device, name.data(), name.size()) != 0) name[0] = '\0';
    library_->memory(device, &memory);
    gpus.push_back({name.data(), memory.total});
  }
  return gpus;
}

std::vector<GpuFigure> Nvml::now() const {
  std::vector<GpuFigure> figures;
  if (!library_) return figures;
  for (const auto& numbered : library_->devices) {
    Library::Device const device = numbered.device;
    const auto add = [&](const char* what, double value) {
      figures.push_back({fmt::format("gpu.{}.{}", numbered.number, what), value});
    };
    Library::Utilization utilization;
    if (library_->utilization(device, &utilization) == 0) {
      add("gpu", utilization.gpu);
      add("memory", utilization.memory);
    }
    Library::Memory memory;
    if (library_->memory(device, &memory) == 0 && memory.total > 0) {
      const auto used = static_cast<double>(memory.used);
      add("memoryAllocated", 100 * used / static_cast<double>(memory.total));
      add("memoryAllocatedBytes", used);
    }
    unsigned value = 0, limit = 0;
    if (library_->temperature(device, Library::kTemperatureOfGpu, &value) == 0) add("temp", value);
    if (library_->power(device, &value) == 0) {
      add("powerWatts", value / 1000.0);
      if (library_->power_limit(device, &limit) == 0 && limit > 0) {
        add("enforcedPowerLimitWatts", limit / 1000.0);
        add("powerPercent", 100.0 * value / limit);
      }
    }
  }
  return figures;
}

}  // namespace dalle2
