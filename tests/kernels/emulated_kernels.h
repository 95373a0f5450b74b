// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/gpu/kernel_launcher.h"

namespace dalle2::test {

/// Starts kernels for GPUs on the processor, and counts them.
class EmulatedLauncher : public KernelLauncher {
 public:
  void launch(const KernelCall& call, const at::Device& device) override;
  /// From an address of the device to where the processor reads it; null: they are the same.
  void* (*host_address)(void*) = nullptr;
  std::map<std::string, int64_t> launches = {};  ///< by kernel
};

}  // namespace dalle2::test
