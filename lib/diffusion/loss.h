// SPDX-License-Identifier: MIT
// The simple loss: how far a prediction is from its target, and what each sample's share weighs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "config/types.h"
#include "diffusion/noise_schedule.h"

namespace dalle2 {

/// Mean over the pixels of each sample. [B, C, H, W] twice -> [B]
using PixelLoss = at::Tensor (*)(const at::Tensor& prediction, const at::Tensor& target);

/// l1, l2, or huber (smooth l1 with beta 1).
PixelLoss pixel_loss(LossType kind);

/// Weighs the losses of samples by their time.
class LossWeight {
 public:
  virtual ~LossWeight() = default;
  /// @param losses [B]; @param t [B] int64; @return [B]
  virtual at::Tensor weigh(const at::Tensor& losses, const at::Tensor& t) const = 0;
};

/// p2 weighting (Choi et al. 2022, eq. 8) by the schedule's p2_loss_weight if `gamma` is above 0,
/// else every sample weighs the same.
std::unique_ptr<LossWeight> make_p2_loss_weight(double gamma, const NoiseSchedule& schedule);

}  // namespace dalle2
