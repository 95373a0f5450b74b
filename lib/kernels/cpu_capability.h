// SPDX-License-Identifier: MIT
#pragma once

namespace dalle2 {

/// Whether this processor has what at::cpu::get_cpu_capabilities() calls so: "avx512_bf16", "amx_bf16".
bool cpu_has(const char* capability);

}  // namespace dalle2
