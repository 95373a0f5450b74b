// SPDX-License-Identifier: MIT
#include "run/device/device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "base/error.h"
#include "base/log.h"
#include "config/shared/text_rules.h"
#include "data/pictures/preprocess.h"

namespace dalle2 {
namespace {

/// The same for the whole run.
c10::Stream copy_stream(const at::Device& device) {
  static const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return stream;
}

std::optional<at::Device>& stand_in() {
  static std::optional<at::Device> device;
  return device;
}

/// Where the library of LibTorch lies that this process uses.
std::filesystem::path folder_of_libtorch() {
  Dl_info info{};
  // Any function that libtorch_cpu.so defines.
  if (dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

}  // namespace

std::string load_cuda_library(const std::filesystem::path& folder, bool has_driver) {
  const std::filesystem::path path = folder / "libtorch_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return fmt::format("this LibTorch is only for the CPU, without CUDA ({} is absent)",
                       path.string());
  }
  if (!has_driver) return "this machine has no NVIDIA driver (libcuda.so.1)";
  if (dlopen(path.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) return "";
  const std::string fault = dlerror();
  log_warning(
      "train",
      "there is a GPU driver, but the CUDA part of LibTorch cannot be loaded: {}\n  A LibTorch "
      "that was installed for the CPU lacks NVIDIA's libraries: pip install torch=={} beside "
      "this program, or build it with scripts/build.sh --cuda.",
      fault,
      TORCH_VERSION);
  return "the CUDA part of LibTorch cannot be loaded: " + fault;
}

const std::string& cuda_fault() {
  static const std::string fault =
      load_cuda_library(folder_of_libtorch(), dlopen("libcuda.so.1", RTLD_LAZY) != nullptr);
  return fault;
}

std::string gpu_uuid(int number) {
  struct Uuid {
    unsigned char bytes[16];
  };
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return "";
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver, "cuDeviceGet"));
  const auto get_uuid = reinterpret_cast<int (*)(Uuid*, int)>(dlsym(driver, "cuDeviceGetUuid"));
  int device = 0;
  Uuid uuid{};
  if (get == nullptr || get_uuid == nullptr || get(&device, number) != 0 ||
      get_uuid(&uuid, device) != 0) {
    return "";
  }
  std::string text = "GPU-";
  for (const unsigned char byte : uuid.bytes) text += fmt::format("{:02x}", byte);
  return text;
}

std::string cuda_text() {
  if (!cuda_fault().empty()) return cuda_fault();
  return at::hasCUDA() ? "CUDA can be used"
                       : "the NVIDIA driver shows no GPU (none, hidden by CUDA_VISIBLE_DEVICES, or "
                         "the driver is older than LibTorch's CUDA)";
}

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
  cuda_fault();  // before torch is asked
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
    throw ConfigError("{}: \"{}\" was requested, but no CUDA device was found: {}\n  {}",
                      pointer,
                      name,
                      cuda_text(),
                      pointer.starts_with("--") ? "Use " + pointer + " cpu, which is slower."
                                                : "Set it to \"cpu\" to train on the CPU.");
  }
  if (without_gpu == WithoutGpu::kWarn) {
    log_warning(
        "train",
        "there is no usable GPU: {}. This runs on the CPU, although {} is \"{}\"; set it to "
        "\"cpu\" if that is what you want",
        cuda_text(),
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
  if (device.has_index()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  return device;
}

void copy_to_device(const at::Device& device, const std::vector<at::Tensor*>& tensors) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  const c10::Stream compute = streams.getStream(device), copies = copy_stream(device);
  {
    const c10::StreamGuard on_copies(copies);
    for (at::Tensor* tensor : tensors) {
      // What a loader has pinned stays as it is. Pinned memory is used again only after the copy.
      const at::Tensor pinned = tensor->is_cpu() ? tensor->pin_memory() : *tensor;
      *tensor = pinned.to(device, /*non_blocking=*/true);
      // Their memory is not used again before the step has finished.
      tensor->record_stream(compute);
    }
  }
  c10::Event copied(device.type());
  copied.record(copies);
  copied.block(compute);
  for (at::Tensor* tensor : tensors) *tensor = as_floats(*tensor);
}

}  // namespace dalle2
