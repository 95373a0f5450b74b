// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

namespace dalle2 {

/// Memory for a tensor of a batch, of which copy_to_device() makes one on the GPU. @param gpu whose page-locked memory it is; none:
/// the batch stays on the CPU
at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu);

}  // namespace dalle2
