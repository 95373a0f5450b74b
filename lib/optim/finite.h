// SPDX-License-Identifier: MIT
// Are all numbers of large buffers finite.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// One pass over memory. Waits for the device.
bool all_finite(at::TensorList tensors);

}  // namespace dalle2
