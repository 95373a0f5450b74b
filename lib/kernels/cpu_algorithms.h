// SPDX-License-Identifier: MIT
// Whether a device computes with algorithms that were made for the CPU.
#pragma once

#include <c10/core/Device.h>

namespace dalle2 {

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
