// SPDX-License-Identifier: MIT
#include "model/clip/halves_rotary.h"

#include <torch/torch.h>

namespace dalle2 {
namespace {

constexpr double kRotaryBase = 10000.0;

}  // namespace

HalvesRotaryImpl::HalvesRotaryImpl(int64_t dim) {
  const at::Tensor powers = at::arange(0, dim, 2, at::kFloat) / static_cast<double>(dim);
  inv_freq_ = register_buffer("inv_freq", 1.0 / at::pow(at::Scalar(kRotaryBase), powers));
}

HalvesRotaryImpl::Angles HalvesRotaryImpl::angles(int64_t tokens) const {
  const at::Tensor angles =
      at::arange(tokens, inv_freq_.options()).unsqueeze(1) * inv_freq_.unsqueeze(0);
  return {angles.cos(), angles.sin()};
}

at::Tensor HalvesRotaryImpl::rotate(const at::Tensor& x, const Angles& angles) {
  const int64_t half = angles.cos.size(1);
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  return at::cat({(a * angles.cos - b * angles.sin).to(x.scalar_type()),
                  (b * angles.cos + a * angles.sin).to(x.scalar_type()),
                  x.narrow(-1, 2 * half, x.size(-1) - 2 * half)},
                 -1);
}

}  // namespace dalle2
