// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "dist/world.h"
#include "trainer/tensor_group.h"

namespace dalle2 {

/// Copies tensors of the host, from pinned memory and on a stream of their own; work that is queued
/// on the current stream afterwards waits for them, the host does not. On the CPU they stay. Bytes are pictures, and become floats on
/// the device: floats_from_bytes().
void copy_to_device(const at::Device& device, const std::vector<at::Tensor*>& tensors);

/// The device for loaders, which make batches for a GPU in page-locked memory; none for the CPU.
inline std::optional<at::Device> gpu_of(const at::Device& device) {
  return device.is_cpu() ? std::nullopt : std::optional(device);
}

/// A batch of any kind by copy_to_device().
template <TensorGroup Group>
Group copied_to(const at::Device& device, Group group) {
  std::vector<at::Tensor*> tensors;
  group.tensors([&](at::Tensor& tensor) {
    if (tensor.defined()) tensors.push_back(&tensor);
  });
  copy_to_device(device, tensors);
  return group;
}

/// Loads LibTorch's CUDA half, a library of its own, from `folder`. The program does not name it, so that one program runs
/// with a LibTorch for the CPU and with one for CUDA; its operations and devices are there once it is loaded. Without
/// NVIDIA's driver that is not tried: it would take memory and time for nothing. A failure is logged as a warning.
/// @return what keeps CUDA from being used; empty if it is loaded
std::string load_cuda_library(const std::filesystem::path& folder, bool has_driver);

/// The same from the folder of the LibTorch that the program runs with, once. To be called before torch is first asked
/// for a GPU, for it remembers that it has none.
const std::string& cuda_fault();

/// That CUDA can be used, or what keeps it from that: for messages.
std::string cuda_text();

/// The GPU of that number, as no two have it; that of the whole GPU for a slice of one (MIG). Empty if
/// the driver does not say.
std::string gpu_uuid(int number);

/// What becomes of "cuda" without a usable GPU.
enum class WithoutGpu {
  kError,
  kWarn,   ///< the CPU, with a line that says why
  kQuiet,  ///< the CPU: another process says it
};

/// "cpu", "cuda" or "cuda:N".
/// @param pointer of the option, for messages: "/train/device", "--device"
/// @throws ConfigError for another name, for a GPU that this machine does not have, or for cuda
/// without a usable GPU with kError
at::Device choose_device(const std::string& name,
                         const std::string& pointer,
                         WithoutGpu without_gpu);

/// The same, made the current device of this thread; of several processes on a machine each takes the
/// GPU of its local rank.
at::Device device_of_rank(const std::string& name,
                          const std::string& pointer,
                          WithoutGpu without_gpu,
                          const World& world);

/// From now on "cuda" names this device, for tests on machines without a GPU; none: what the machine has.
void stand_in_for_cuda(std::optional<at::Device> device);

}  // namespace dalle2
