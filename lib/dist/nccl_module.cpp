// SPDX-License-Identifier: MIT
// The whole of libdalle2_nccl.so, and the only file that sees NCCL.
#include "dist/nccl_module.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#define USE_C10D_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace dalle2 {

extern "C" MakeNcclGroup dalle2_make_nccl_group;

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
