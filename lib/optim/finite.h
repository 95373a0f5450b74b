// SPDX-License-Identifier: MIT
// Checks that all numbers of large buffers are finite.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// One pass over memory. Waits for the device.
bool all_finite(at::TensorList tensors);

}  // namespace dalle2
