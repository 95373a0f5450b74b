// SPDX-License-Identifier: MIT
#include "kernels/cpu_algorithms.h"

#include <ATen/cpu/Utils.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>

namespace dalle2::test {
namespace {

/// Whether the kernel lists `flag` for the first processor.
bool kernel_lists(const std::string& flag) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("flags")) return (line + " ").find(" " + flag + " ") != line.npos;
  }
  return false;
}

}  // namespace

TEST_CASE("what a processor has is what the system says of it") {
  for (const char* const capability : {"avx2", "avx512_bf16", "amx_bf16"}) {
    INFO(capability);
    CHECK(at::cpu::get_cpu_capabilities().contains(capability));
    CHECK(cpu_has(capability) == kernel_lists(capability));
  }
  CHECK_FALSE(cpu_has("no such thing"));
}

}  // namespace dalle2::test
