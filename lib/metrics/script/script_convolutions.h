// SPDX-License-Identifier: MIT
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace torch::jit {
struct Module;
}

namespace dalle2 {

/// Lets a frozen network compute its convolutions by convolution() (kernels/convolution.h), with filters that lie
/// channels-last. Before its first pass; on a device without CPU algorithms the network stays as it is.
/// @return how many convolutions were replaced
int64_t use_own_convolutions(torch::jit::Module& network, const at::Device& device);

}  // namespace dalle2
