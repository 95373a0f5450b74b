// SPDX-License-Identifier: MIT
// Kernels of ours for devices other than the CPU. Their sources (*.cuh) are in the program as text, and are compiled for the GPU at hand
// when the first of them is needed: a build needs no CUDA compiler, and knows of no architecture.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace dalle2 {

/// A program and the types that ELEMENT and RESULT stand for in it: float32, bfloat16 or float16.
struct KernelProgram {
  const char* name;  ///< "group_norm_silu", "dropout_mask"
  at::ScalarType element, result;
};

struct KernelCall {
  KernelProgram program;
  std::string kernel;
  std::array<int64_t, 2> grid = {1, 1};  ///< blocks; at most 2^31 - 1 and 65,535
  int64_t threads = 1;                   ///< of a block
  std::vector<void*> arguments;  ///< where each argument lies, as cuLaunchKernel() takes them
};

class KernelLauncher {
 public:
  virtual ~KernelLauncher() = default;
  /// Starts it on the current stream of the device.
  virtual void launch(const KernelCall& call, const at::Device& device) = 0;
};

/// The launcher of a device type; null if there is none, in which case ATen's operations are used.
KernelLauncher* kernel_launcher(at::DeviceType type);
/// Sets the launcher of a device type; null removes it. CUDA has one by default.
void set_kernel_launcher(at::DeviceType type, KernelLauncher* launcher);

/// Whether a device's kernels can be used. The first time in a process it asks `agrees`, which compares their results with those of other
/// operations; if they differ, or the kernels cannot be compiled or started, it warns once that they are left out.
/// @param what they do, for the warning
bool has_kernels(const at::Device& device,
                 const KernelProgram& program,
                 const std::string& what,
                 const std::function<bool()>& agrees);

/// The text of a program for NVRTC, from its parts. Needs the macros ELEMENT, RESULT and KERNEL.
std::string kernel_source(const std::string& program);

/// Where and how often a kernel runs.
struct KernelShape {
  std::array<int64_t, 2> grid;
  int64_t threads;
};

/// Calls a kernel with values as arguments, whose types have to be those of its parameters.
template <class... Arguments>
void launch_kernel(const at::Device& device,
                   const KernelProgram& program,
                   const std::string& kernel,
                   const KernelShape& shape,
                   Arguments... arguments) {
  KernelCall call{program, kernel, shape.grid, shape.threads, {}};
  call.arguments = {static_cast<void*>(&arguments)...};
  kernel_launcher(device.type())->launch(call, device);
}

}  // namespace dalle2
