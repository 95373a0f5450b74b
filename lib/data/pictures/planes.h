// SPDX-License-Identifier: MIT
// The last transform: pixels to planes of a batch, of floats or of bytes that become floats on a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "io/pictures/image.h"

namespace dalle2 {

/// ToTensor: [height, width, 3] bytes to [3, height, width] floats, value / 255.
/// @param out room for 3 * height * width floats
void write_planes(const Image& image, float* out);
/// The same without the division, a quarter of the memory. @param out room for 3 * height * width bytes
void write_planes(const Image& image, uint8_t* out);

/// The pixels of one picture of a batch. @param batch [B, C, height, width], contiguous float32 or uint8; C is 3, 1 for Pillow's grey
/// (ITU-R 601), or 4 with alpha
void write_picture(const Image& image, const at::Tensor& batch, int64_t place);

/// Memory for a tensor of a batch, of which copy_to_device() makes one on the GPU.
/// @param gpu whose page-locked memory it is; none: the batch stays on the CPU
at::Tensor empty_for_batch(at::ScalarType dtype,
                           at::IntArrayRef shape,
                           const std::optional<at::Device>& gpu);

/// The division, where the bytes are. @param bytes [...] uint8 @return [...] float32 in [0, 1]; the bits of the CPU's on every device
at::Tensor floats_from_bytes(const at::Tensor& bytes);
/// The same for bytes; floats as they are.
at::Tensor as_floats(const at::Tensor& pictures);

}  // namespace dalle2
