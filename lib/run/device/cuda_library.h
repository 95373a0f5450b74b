// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <string>

namespace dalle2 {

/// What has become of LibTorch's CUDA half, a library of its own. The program does not name it, so that one program
/// runs with a LibTorch for the CPU and with one for CUDA; its operations and devices are there once it is loaded.
struct CudaLibrary {
  enum class State { absent, no_driver, failed, loaded };
  State state = State::absent;
  std::filesystem::path path;  ///< where it is, or would be
  std::string fault;           ///< why it cannot be loaded, in the words of the loader; of `failed`
};

/// Loads libtorch_cuda.so from `folder`. Without NVIDIA's driver that is not tried: it would take memory and time for
/// nothing, and a LibTorch that was installed without NVIDIA's libraries would fail.
CudaLibrary load_cuda_library(const std::filesystem::path& folder, bool has_driver);

/// The same from the folder of the LibTorch that the program runs with, once; a failure is logged as a warning. To be
/// called before torch is first asked for a GPU, for it remembers that it has none.
const CudaLibrary& cuda_library();

/// That CUDA can be used, or what keeps it from that: for messages.
std::string cuda_library_text(const CudaLibrary& library);

/// The GPU of that number, as no two have it; that of the whole GPU for a slice of one (MIG). Empty if
/// the driver does not say.
std::string gpu_uuid(int number);

}  // namespace dalle2
