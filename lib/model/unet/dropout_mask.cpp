// SPDX-License-Identifier: MIT
#include "model/unet/dropout_mask.h"

#include <torch/torch.h>

#include "kernels/dropout_mask.h"

namespace dalle2 {

at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number) {
  constexpr uint64_t kOddA = 0x9E3779B97F4A7C15, kOddB = 0xBF58476D1CE4E5B9;
  uint64_t address = seed.seed ^ (static_cast<uint64_t>(number + 1) * kOddA);
  address = (address ^ (address >> 30)) * kOddB;
  const torch::NoGradGuard no_grad;
  const at::Tensor mask = at::empty(x.sizes(), x.options());
  fill_dropout_mask_(mask, address, seed.first_sample, 1.0 - drop);
  return mask;
}

}  // namespace dalle2
