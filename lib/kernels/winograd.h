// SPDX-License-Identifier: MIT
// 3x3 convolutions of channels-last maps by Winograd's algorithm, in tiles of 4x4 pixels. Numbers of channels are
// multiples of loops::kTileChannels. All tensors are channels-last. Maps are float32 or bfloat16, weights and what is
// computed float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

/// The tiles of a map [B, C, H, W], of all samples together.
int64_t winograd_tiles(const at::Tensor& map);

/// at::conv2d with a padding of 1. @param x [B, in, H, W]; weight [out, in, 3, 3]; bias [out] or undefined
at::Tensor winograd_convolution(const at::Tensor& x,
                                const at::Tensor& weight,
                                const at::Tensor& bias);

/// Its gradient at x. @param dy [B, out, H, W]
at::Tensor winograd_pixel_gradient(const at::Tensor& dy, const at::Tensor& weight);

/// Its gradient at the weight, of which only the shape matters. @param dy of x's type
at::Tensor winograd_weight_gradient(const at::Tensor& x,
                                    const at::Tensor& dy,
                                    const at::Tensor& weight);

}  // namespace dalle2
