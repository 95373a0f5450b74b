// SPDX-License-Identifier: MIT
// The whole of libdalle2_nccl.so, and the only file that sees NCCL.
#include "dist/nccl_module.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#define USE_C10D_NCCL 1
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace dalle2 {

extern "C" MakeNcclGroup dalle2_make_nccl_group;

void dalle2_make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                            int rank,
                            int size,
                            std::chrono::milliseconds timeout,
                            c10::intrusive_ptr<c10d::Backend>& made) {
  // The options have NCCL's configuration in them, whose size grows from version to version.
  constexpr uint64_t kOfHeaders = uint64_t{NCCL_MAJOR} << 32 | uint64_t{NCCL_MINOR} << 16;
  const uint64_t of_libtorch = torch::cuda::nccl::version() & ~uint64_t{0xffff};
  TORCH_CHECK(of_libtorch == kOfHeaders,
              "libdalle2_nccl.so was built with the headers of NCCL ",
              NCCL_MAJOR,
              ".",
              NCCL_MINOR,
              ", and LibTorch has ",
              of_libtorch >> 32,
              ".",
              of_libtorch >> 16 & 0xffff,
              ": build the program with the headers of that version");
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  made = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace dalle2
