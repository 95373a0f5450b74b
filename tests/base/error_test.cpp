// SPDX-License-Identifier: MIT
#include "base/error.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/this_process.h"
#include "base/timer.h"

namespace dalle2 {
namespace {

template <class Thrown>
int code_of() {
  try {
    throw Thrown("text {}", 7);
  } catch (const Error& error) {
    CHECK(std::string(error.what()) == "text 7");
    return static_cast<int>(error.code());
  }
}

TEST_CASE("each kind of error has the exit code of the contract") {
  CHECK(code_of<ConfigError>() == 2);
  CHECK(code_of<DataError>() == 3);
  CHECK(code_of<NonFiniteError>() == 4);
  CHECK(code_of<ResourceError>() == 5);
  CHECK(code_of<NetworkError>() == 6);
  CHECK(static_cast<int>(ExitCode::kStopped) == 75);
}

TEST_CASE("braces in a user's text pass through an error unchanged") {
  const std::string user_text = "{epoch:03d} {} }{";
  CHECK_THROWS_WITH(throw ConfigError("got {}", user_text), "got {epoch:03d} {} }{");
}

TEST_CASE("a broken invariant names its place and is not a user's error") {
  const auto check = [](int value) { D2_CHECK(value == 1, "value is {}", value); };
  CHECK_NOTHROW(check(1));
  CHECK_THROWS_AS(check(2), std::logic_error);
  CHECK_THROWS_WITH(check(2), Catch::Contains("error_test.cpp:") && Catch::EndsWith("value is 2"));
}

TEST_CASE("D2_CHECK is one statement also in an if without braces") {
  int reached = 0;
  if (reached == 1)
    D2_CHECK(false, "not evaluated");
  else
    reached = 2;
  CHECK(reached == 2);
}

TEST_CASE("errno is told in words") {
  CHECK(errno_text(ENOENT) == "No such file or directory");
}

TEST_CASE("the version has three numbers") {
  CHECK_THAT(program_version(), Catch::Matches("[0-9]+\\.[0-9]+\\.[0-9]+"));
}

TEST_CASE("what LibTorch and CUDA say of too little memory is known") {
  for (const char* text :
       {"CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"CUDACachingAllocator.cpp\":1",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"}) {
    CHECK(says_out_of_memory(text));
  }
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
