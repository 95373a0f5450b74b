// SPDX-License-Identifier: MIT
#include "kernels/loops.h"

#include <cstdlib>
#include <string_view>

namespace dalle2::loops {

const Table& best() {
#ifdef DALLE2_X86_LOOPS
  static const Table& table = []() -> const Table& {
    __builtin_cpu_init();
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    // The variable that holds LibTorch to a smaller instruction set.
    const char* const variable = std::getenv("ATEN_CPU_CAPABILITY");
    const std::string_view held = variable == nullptr ? "" : variable;
    if (wide && held != "avx2" && held != "default") return avx512();
    return middle && held != "default" ? avx2() : baseline();
  }();
  return table;
#else
  return baseline();
#endif
}

}  // namespace dalle2::loops
