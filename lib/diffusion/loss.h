// SPDX-License-Identifier: MIT
// The simple loss: how far a prediction is from its target.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/reading/types.h"

namespace dalle2 {

/// Mean over the pixels of each sample. [B, C, H, W] twice -> [B]
using PixelLoss = at::Tensor (*)(const at::Tensor& prediction, const at::Tensor& target);

/// l1, l2, or huber (smooth l1 with beta 1).
PixelLoss pixel_loss(LossType kind);

}  // namespace dalle2
