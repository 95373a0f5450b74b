// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <ATen/core/Tensor.h>
#include <optional>
#include <string>
#include <utility>
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

/// Makes a GPU the current one of this thread: what names no device then is on it.
void make_current(const at::Device& device);

}  // namespace dalle2
