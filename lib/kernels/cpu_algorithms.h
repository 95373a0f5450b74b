// SPDX-License-Identifier: MIT
// What the CPU has, and whether a device computes with algorithms that were made for it.
#pragma once

#include <c10/core/Device.h>

namespace dalle2 {

/// Whether this processor has what at::cpu::get_cpu_capabilities() calls so: "avx512_bf16", "amx_bf16".
bool cpu_has(const char* capability);

/// The CPU: channels-last maps and filters, the convolutions of convolution.h, shared prefixes of a prior.
bool uses_cpu_algorithms(const at::Device& device);

/// While one exists, the CPU computes like a device without such algorithms, and keeps maps and filters planar.
/// Results of such a device can then be compared bit by bit.
class PlainAlgorithms {
 public:
  PlainAlgorithms();
  ~PlainAlgorithms();
  PlainAlgorithms(const PlainAlgorithms&) = delete;
  PlainAlgorithms& operator=(const PlainAlgorithms&) = delete;
};

}  // namespace dalle2
