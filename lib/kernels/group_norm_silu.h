// SPDX-License-Identifier: MIT
// GroupNorm, scale and shift of each sample, and SiLU: one pass over the map forward, one backward. And GroupNorm alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace dalle2 {

struct GroupNormSiluInputs {
  at::Tensor x;            ///< [B, C, H, W]
  at::Tensor weight;       ///< [C]
  at::Tensor bias;         ///< [C]
  at::Tensor scale_shift;  ///< [B, 2 C]; undefined: none
};

/// silu(group_norm(x) (scale + 1) + shift), of x's type. Keeps x alone for the backward pass. Second derivatives are ATen's.
at::Tensor group_norm_silu(const GroupNormSiluInputs& inputs, int64_t groups, double eps);

/// The same of ATen's operations, for types, orders and devices that the other has no loops for.
at::Tensor group_norm_silu_plain(const GroupNormSiluInputs& inputs, int64_t groups, double eps);

/// at::group_norm(x) of x's type, on the CPU by the same loops. A channels-last map keeps the digits of a mean far from zero, which
/// LibTorch's norm of such maps loses. @param x [B, C, H, W] @param weight, bias [C]
at::Tensor group_norm_of_map(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias,
                             int64_t groups,
                             double eps);

/// Whether group_norm_silu() is one operation for such a map.
bool has_group_norm_silu(const at::Tensor& x);

}  // namespace dalle2
