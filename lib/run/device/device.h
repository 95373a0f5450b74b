// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "dist/world.h"

namespace dalle2 {

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
