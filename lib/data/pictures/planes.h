// SPDX-License-Identifier: MIT
// The last transform: pixels to planes, of floats or of bytes that become floats on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "io/pictures/image.h"

namespace dalle2 {

/// ToTensor: [height, width, 3] bytes to [3, height, width] floats, value / 255.
/// @param out room for 3 * height * width floats
void write_planes(const Image& image, float* out);
/// The same without the division, a quarter of the memory. @param out room for 3 * height * width bytes
void write_planes(const Image& image, uint8_t* out);

/// The division, where the bytes are. @param bytes [...] uint8 @return [...] float32 in [0, 1]; the bits of the CPU's on every device
at::Tensor floats_from_bytes(const at::Tensor& bytes);

}  // namespace dalle2
