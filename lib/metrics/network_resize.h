// SPDX-License-Identifier: MIT
// Ways to bring a picture to the side that a feature network takes. Figures that were made by
// different ways do not compare.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "config/decoder/decoder_evaluate_config.h"

namespace dalle2 {

/// @param images [n, c, h, w] float32, values of bytes (0 to 255)
/// @return [n, c, side, side] float32
at::Tensor resize_for_network(const at::Tensor& images, int64_t side, NetworkResize how);

/// Bytes as pictures are stored: floor(x * 255 + 0.5), clamped, of x in [0, 1]. @return uint8
at::Tensor to_bytes(const at::Tensor& images);

}  // namespace dalle2
