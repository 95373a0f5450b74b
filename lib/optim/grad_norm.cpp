// SPDX-License-Identifier: MIT
#include "optim/grad_norm.h"

#include <torch/torch.h>

#include "base/error.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

at::Tensor row_norms(const at::Tensor& flat) {
  D2_CHECK(flat.dim() == 1 && flat.numel() % kFlatRow == 0,
           "{} elements do not make whole rows of {}",
           flat.numel(),
           kFlatRow);
  return at::linalg_vector_norm(flat.view({-1, kFlatRow}), 2, at::IntArrayRef{1});
}

at::Tensor norm_of_rows(const at::Tensor& norms) {
  return at::linalg_vector_norm(norms, 2);
}

at::Tensor grad_norm(const at::Tensor& flat) {
  return norm_of_rows(row_norms(flat));
}

at::Tensor clip_divisor(const at::Tensor& norm, double max_norm) {
  return norm.add(1e-6).div_(max_norm).clamp_min_(1.0);
}

}  // namespace dalle2
