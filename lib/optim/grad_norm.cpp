// SPDX-License-Identifier: MIT
#include "optim/grad_norm.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {

at::Tensor grad_norm(const at::Tensor& flat) {
  constexpr int64_t kRow = 1024;
  D2_CHECK(flat.dim() == 1 && flat.numel() % kRow == 0,
           "{} elements do not make whole rows of {}",
           flat.numel(),
           kRow);
  // Norm of the rows' norms: one float32 sum over millions of squares would lose digits.
  return at::linalg_vector_norm(
      at::linalg_vector_norm(flat.view({-1, kRow}), 2, at::IntArrayRef{1}), 2);
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).div_(max_norm).clamp_min_(1.0);
}

}  // namespace dalle2
