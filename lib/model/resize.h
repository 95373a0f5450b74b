// SPDX-License-Identifier: MIT
// Resampling of image tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

namespace dalle2 {

/// Cubic resampling (a = -1/2, antialiased when shrinking), equal to the "ResizeRight" package:
/// taps outside the image count as zero, so borders darken. Equal width returns the input
/// untouched, not even clamped. Differs from the package: a square image always becomes exactly
/// `size` wide (the package rounds 11 -> 100 up to 101).
/// @param image [B, C, H, W]; float32 maths for half types
/// @param size width of the result; both axes are scaled by size / W
/// @param clamp_range bounds of the result
/// @param nearest nearest neighbour instead: always [B, C, size, size]
at::Tensor resize_image_to(const at::Tensor& image,
                           int64_t size,
                           std::optional<std::pair<double, double>> clamp_range = std::nullopt,
                           bool nearest = false);

}  // namespace dalle2
