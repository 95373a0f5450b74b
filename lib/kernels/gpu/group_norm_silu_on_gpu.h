// SPDX-License-Identifier: MIT
// group_norm_silu() by this program's own kernels, for planar maps. A chunk is summed in float32, and chunks are combined in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace dalle2 {

/// Whether these kernels can be used for such a map. The first time on a type of device they are compared with ATen's operations, and are
/// left out, with a warning, if they differ.
bool has_group_norm_silu_on_gpu(const at::Tensor& x);

/// @return y, and mean and 1 / deviation of each group [B groups, 2]
std::tuple<at::Tensor, at::Tensor> group_norm_silu_on_gpu(
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const std::optional<at::Tensor>& scale_shift,
    int64_t groups,
    double eps);

/// @return the gradients of x, weight, bias and, if defined, scale_shift
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> group_norm_silu_backward_on_gpu(
    const at::Tensor& dy,
    const at::Tensor& x,
    const at::Tensor& moments,
    const at::Tensor& weight,
    const at::Tensor& bias,
    const std::optional<at::Tensor>& scale_shift,
    int64_t groups);

}  // namespace dalle2
