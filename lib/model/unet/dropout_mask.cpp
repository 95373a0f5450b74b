// SPDX-License-Identifier: MIT
#include "model/unet/dropout_mask.h"

#include <torch/torch.h>

#include "kernels/dropout_mask.h"

namespace dalle2 {

at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number) {
  const torch::NoGradGuard no_grad;
  const at::Tensor mask = at::empty(x.sizes(), x.options());
  const int64_t place = number + 1;
  if (seed.on_device.defined()) {
    fill_dropout_mask_from_(mask, seed.on_device, place, 1.0 - drop);
  } else {
    fill_dropout_mask_(mask, dropout_address(seed.seed, place), seed.first_sample, 1.0 - drop);
  }
  return mask;
}

}  // namespace dalle2
