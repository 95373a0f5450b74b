// SPDX-License-Identifier: MIT
#include "tracker/wandb/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace dalle2 {
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
