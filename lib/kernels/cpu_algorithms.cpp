// SPDX-License-Identifier: MIT
#include "kernels/cpu_algorithms.h"

#include <ATen/cpu/Utils.h>

#include <atomic>

namespace dalle2 {
namespace {

std::atomic<int> plain_algorithms = 0;

}  // namespace

bool cpu_has(const char* capability) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  const auto found = capabilities.find(capability);
  return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

bool uses_cpu_algorithms(const at::Device& device) {
  return device.is_cpu() && plain_algorithms == 0;
}

PlainAlgorithms::PlainAlgorithms() {
  ++plain_algorithms;
}

PlainAlgorithms::~PlainAlgorithms() {
  --plain_algorithms;
}

}  // namespace dalle2
