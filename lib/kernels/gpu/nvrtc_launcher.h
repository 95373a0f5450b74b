// SPDX-License-Identifier: MIT
// Compiles kernels with NVRTC and starts them through the driver. Both libraries are loaded when they are needed: LibTorch for CUDA brings
// the one, the machine has the other.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/gpu/kernel_launcher.h"

namespace dalle2 {

/// Where the library of LibTorch lies that this process uses.
std::filesystem::path folder_of_libtorch();

/// NVRTC, the compiler of CUDA C++ (CUDA Toolkit, "NVRTC").
class Nvrtc {
 public:
  /// @param library of dlopen(), through which its functions are found @throws ResourceError if one is absent
  explicit Nvrtc(void* library);

  /// Compute capabilities that it compiles for, ascending: 90 is 9.0.
  std::vector<int> capabilities() const;
  /// Machine code for the GPU, or, for one newer than the compiler, code that the driver translates.
  /// @param capability of the GPU @throws ResourceError with the compiler's messages
  std::string compile(const KernelProgram& program, int capability) const;

 private:
  template <class Function>
  void find(const char* name, Function*& function) const;
  void check(int code, const char* what) const;

  using Program = void*;
  void* library_;
  int (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*);
  int (*compile_)(Program, int, const char* const*);
  int (*destroy_)(Program*);
  int (*log_size_)(Program, size_t*);
  int (*log_)(Program, char*);
  int (*code_size_)(Program, size_t*);
  int (*code_)(Program, char*);
  int (*text_size_)(Program, size_t*);
  int (*text_)(Program, char*);
  int (*count_capabilities_)(int*);
  int (*capabilities_)(int*);
  const char* (*error_)(int);
};

/// Of this process; null where the driver or NVRTC is absent, which is logged once.
KernelLauncher* nvrtc_launcher();

}  // namespace dalle2
