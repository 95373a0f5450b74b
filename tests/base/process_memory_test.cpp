// SPDX-License-Identifier: MIT
#include "base/this_process.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

#include "base/timer.h"

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

TEST_CASE("a timer counts seconds from its making and from each restart") {
  const auto begin = std::chrono::steady_clock::now();
  Timer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const double first = timer.seconds();
  CHECK(first >= 0.03);
  timer.restart();
  const double second = timer.seconds();
  CHECK(second >= 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(timer.seconds() >= 0.03);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  CHECK(first + timer.seconds() <= whole.count());
}

}  // namespace
}  // namespace dalle2
