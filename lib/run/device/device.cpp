// SPDX-License-Identifier: MIT
#include "run/device/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include "base/error.h"
#include "base/log.h"
#include "config/shared/text_rules.h"
#include "run/device/cuda_library.h"

namespace dalle2 {
namespace {

std::optional<at::Device>& stand_in() {
  static std::optional<at::Device> device;
  return device;
}

}  // namespace

void stand_in_for_cuda(std::optional<at::Device> device) {
  stand_in() = device;
}

at::Device choose_device(const std::string& name,
                         const std::string& pointer,
                         WithoutGpu without_gpu) {
  if (name == "cpu") return at::kCPU;
  if (const auto fault = device_fault(name)) throw ConfigError("{}: {}", pointer, *fault);
  if (stand_in()) return *stand_in();
  const int64_t number = name == "cuda" ? -1 : std::stoll(name.substr(name.find(':') + 1));
  const CudaLibrary& library = cuda_library();  // before torch is asked
  if (torch::cuda::is_available()) {
    const auto count = static_cast<int64_t>(torch::cuda::device_count());
    if (number >= count) {
      throw ConfigError("{}: \"{}\" was requested, but this machine has {}: cuda:0{}",
                        pointer,
                        name,
                        count == 1 ? "one GPU" : fmt::format("{} GPUs", count),
                        count == 1 ? "" : fmt::format(" to cuda:{}", count - 1));
    }
    return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(number));
  }
  if (without_gpu == WithoutGpu::kError) {
    throw ConfigError(
        "{}: \"{}\" was requested, but no usable GPU was found: {}\n  Set it to \"cpu\" to train "
        "on the CPU.",
        pointer,
        name,
        cuda_library_text(library));
  }
  if (without_gpu == WithoutGpu::kWarn) {
    log_warning(
        "train",
        "there is no usable GPU: {}. This runs on the CPU, although {} is \"{}\"; set it to "
        "\"cpu\" if that is what you want",
        cuda_library_text(library),
        pointer,
        name);
  }
  return at::kCPU;
}

at::Device device_of_rank(const std::string& name,
                          const std::string& pointer,
                          WithoutGpu without_gpu,
                          const World& world) {
  at::Device device = choose_device(name, pointer, without_gpu);
  if (!device.is_cuda()) return device;
  if (!world.is_alone()) {
    device.set_index(static_cast<c10::DeviceIndex>(world.local_rank %
                                                   static_cast<int>(torch::cuda::device_count())));
  }
  if (device.has_index()) make_current(device);
  return device;
}

void make_current(const at::Device& device) {
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

}  // namespace dalle2
