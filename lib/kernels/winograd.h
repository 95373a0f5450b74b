// SPDX-License-Identifier: MIT
// Convolutions of channels-last maps by Winograd's algorithm, in tiles of 4x4 pixels: 3x3 ones, and 4x4 ones with a stride of 2. Numbers
// of channels are multiples of loops::kTileChannels. All tensors are channels-last. Maps are float32 or bfloat16, weights and what is
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

/// The tiles that halve a map.
int64_t winograd_halving_tiles(const at::Tensor& x);

/// at::conv2d with a stride of 2 and a padding of 1. @param x [B, in, H, W], both sides even; weight [out, in, 4, 4]; bias [out] or
/// undefined @return [B, out, H / 2, W / 2]
at::Tensor winograd_halving(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// at::conv_transpose2d with a stride of 2 and a padding of 1; without a bias, the gradient of winograd_halving() at x. @param y [B, out,
/// H, W]; weight [out, in, 4, 4]; bias [in] or undefined @return [B, in, 2 H, 2 W]
at::Tensor winograd_doubling(const at::Tensor& y, const at::Tensor& weight, const at::Tensor& bias);

/// The gradient of winograd_halving() at the weight, of which only the shape matters. @param dy of x's type
at::Tensor winograd_halving_weight_gradient(const at::Tensor& x,
                                            const at::Tensor& dy,
                                            const at::Tensor& weight);

}  // namespace dalle2
