// SPDX-License-Identifier: MIT
#include "base/this_process.h"

#include <catch2/catch.hpp>
#include <vector>

namespace dalle2 {
namespace {

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
