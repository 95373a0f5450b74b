// SPDX-License-Identifier: MIT
#include "model/unet/dropout_mask.h"

#include <torch/torch.h>

namespace dalle2 {

at::Tensor dropout_mask(const at::Tensor& x, double drop, const DropoutSeed& seed, int64_t number) {
  const double keep = 1.0 - drop;
  const at::Tensor mask = at::empty_like(x, at::MemoryFormat::Contiguous);
  at::Generator generator = at::globalContext().defaultGenerator(x.device()).clone();
  for (int64_t i = 0; i < x.size(0); ++i) {
    constexpr uint64_t kOddA = 0x9E3779B97F4A7C15, kOddB = 0xBF58476D1CE4E5B9;
    uint64_t address = seed.seed ^ (static_cast<uint64_t>(number + 1) * kOddA);
    address = (address ^ (address >> 30)) * kOddB;
    address += static_cast<uint64_t>(seed.first_sample + i) * kOddA;
    generator.set_current_seed((address ^ (address >> 27)) * kOddB);
    mask.select(0, i).bernoulli_(keep, generator);
  }
  return mask.div_(keep);
}

}  // namespace dalle2
