// SPDX-License-Identifier: MIT
#include "run/device/cuda_library.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <torch/version.h>

#include "base/log.h"
#include "kernels/gpu/nvrtc_launcher.h"

namespace dalle2 {
namespace {

bool has_nvidia_driver() {
  return dlopen("libcuda.so.1", RTLD_LAZY) != nullptr;
}

}  // namespace

CudaLibrary load_cuda_library(const std::filesystem::path& folder, bool has_driver) {
  using State = CudaLibrary::State;
  CudaLibrary library;
  library.path = folder / "libtorch_cuda.so";
  std::error_code ignored;
  if (!std::filesystem::exists(library.path, ignored)) return library;
  if (!has_driver) {
    library.state = State::no_driver;
  } else if (dlopen(library.path.c_str(), RTLD_LAZY | RTLD_GLOBAL) != nullptr) {
    library.state = State::loaded;
  } else {
    library.state = State::failed;
    library.fault = dlerror();
  }
  return library;
}

const CudaLibrary& cuda_library() {
  static const CudaLibrary library = [] {
    CudaLibrary found = load_cuda_library(folder_of_libtorch(), has_nvidia_driver());
    if (found.state == CudaLibrary::State::failed) {
      log_warning(
          "train",
          "there is a GPU driver, but the CUDA part of LibTorch cannot be loaded: {}\n  A LibTorch "
          "that was installed for the CPU lacks NVIDIA's libraries: pip install torch=={} beside "
          "this program, or build it with scripts/build.sh --cuda.",
          found.fault,
          TORCH_VERSION);
    }
    return found;
  }();
  return library;
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

std::string cuda_library_text(const CudaLibrary& library) {
  switch (library.state) {
    case CudaLibrary::State::absent:
      return fmt::format("this LibTorch is only for the CPU, without CUDA ({} is absent)",
                         library.path.string());
    case CudaLibrary::State::no_driver:
      return "this machine has no NVIDIA driver (libcuda.so.1)";
    case CudaLibrary::State::failed:
      return "the CUDA part of LibTorch cannot be loaded: " + library.fault;
    case CudaLibrary::State::loaded:
      break;
  }
  return at::hasCUDA() ? "CUDA can be used"
                       : "the NVIDIA driver shows no GPU (none, hidden by CUDA_VISIBLE_DEVICES, or "
                         "the driver is older than LibTorch's CUDA)";
}

}  // namespace dalle2
