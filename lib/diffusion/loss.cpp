// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {
namespace {

at::Tensor mean_of_sample(const at::Tensor& loss) {
  return loss.flatten(1).mean(1);
}

at::Tensor l1_loss(const at::Tensor& prediction, const at::Tensor& target) {
  return mean_of_sample(at::l1_loss(prediction, target, at::Reduction::None));
}

at::Tensor l2_loss(const at::Tensor& prediction, const at::Tensor& target) {
  return mean_of_sample(at::mse_loss(prediction, target, at::Reduction::None));
}

at::Tensor huber_loss(const at::Tensor& prediction, const at::Tensor& target) {
  return mean_of_sample(at::smooth_l1_loss(prediction, target, at::Reduction::None, /*beta=*/1.0));
}

}  // namespace

PixelLoss pixel_loss(LossType kind) {
  switch (kind) {
    case LossType::l1:
      return l1_loss;
    case LossType::l2:
      return l2_loss;
    case LossType::huber:
      return huber_loss;
  }
  broken_invariant(__FILE__, __LINE__, "a loss type without a formula");
}

}  // namespace dalle2
