// SPDX-License-Identifier: MIT
#include "base/this_process.h"

#include <catch2/catch.hpp>
#include <vector>

namespace dalle2 {
namespace {

TEST_CASE("what LibTorch and CUDA say of too little memory is known") {
  CHECK(says_out_of_memory("CUDA out of memory. Tried to allocate 2.00 GiB"));
  CHECK(says_out_of_memory(
      "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"));
  CHECK(says_out_of_memory("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"));
  CHECK(says_out_of_memory(
      "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"CUDACachingAllocator.cpp\":1"));
  CHECK(says_out_of_memory(
      "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"));
  CHECK_FALSE(says_out_of_memory("CUDA error: an illegal memory access was encountered"));
}

TEST_CASE("the memory of the process grows with what it touches, its peak stays") {
  constexpr uint64_t kSize = 64 << 20;
  const uint64_t before = process_memory("VmRSS");
  {
    const std::vector<char> block(kSize, 1);
    CHECK(process_memory("VmRSS") >= before + kSize * block[kSize / 2] / 2);
  }
  CHECK(process_memory("VmHWM") >= before + kSize / 2);
  CHECK(process_memory("VmNothing") == 0);
}

}  // namespace
}  // namespace dalle2
