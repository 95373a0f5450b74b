// SPDX-License-Identifier: MIT
#include "kernels/cpu_capability.h"

#include <ATen/cpu/Utils.h>

namespace dalle2 {

bool cpu_has(const char* capability) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

}  // namespace dalle2
