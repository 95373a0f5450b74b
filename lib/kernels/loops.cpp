// SPDX-License-Identifier: MIT
#include "kernels/loops.h"

namespace dalle2::loops {

const Table& best() {
#ifdef DALLE2_X86_LOOPS
  static const Table& table = []() -> const Table& {
    __builtin_cpu_init();
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    const bool middle = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (wide) return avx512();
    return middle ? avx2() : baseline();
  }();
  return table;
#else
  return baseline();
#endif
}

}  // namespace dalle2::loops
