// SPDX-License-Identifier: MIT
#include "optim/finite.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

namespace dalle2 {

bool all_finite(at::TensorList tensors) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> largest;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    // The largest magnitude is NaN if any entry is, and takes no copy of the buffer.
    largest.push_back(at::linalg_vector_norm(tensor, std::numeric_limits<double>::infinity()));
  }
  return largest.empty() || at::stack(largest).isfinite().all().item<bool>();
}

}  // namespace dalle2
