// SPDX-License-Identifier: MIT
// The whole of libdalle2_nccl.so, and the only file that sees NCCL.
#include "dist/nccl_module.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#define USE_C10D_NCCL 1
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace dalle2 {

extern "C" MakeNcclGroup dalle2_make_nccl_group;
extern "C" FaultOfNccl dalle2_fault_of_nccl;

void dalle2_fault_of_nccl(std::string& fault) {
  // The options of a group have NCCL's configuration in them, whose size grows from version to version.
  const uint64_t version = torch::cuda::nccl::version();
  const uint64_t major = version >> 32, minor = version >> 16 & 0xffff;
  if (major == NCCL_MAJOR && minor == NCCL_MINOR) return;
  fault = "it was built with the headers of NCCL " + std::to_string(NCCL_MAJOR) + "." +
          std::to_string(NCCL_MINOR) + ", and LibTorch has " + std::to_string(major) + "." +
          std::to_string(minor);
}

void dalle2_make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                            int rank,
                            int size,
                            std::chrono::milliseconds timeout,
                            c10::intrusive_ptr<c10d::Backend>& made) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace dalle2
