// SPDX-License-Identifier: MIT
// Global norm of the gradients and the clipping that follows from it, without reading a value.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// Euclidean norms of the rows of FlatGradients::values(), or of a slice of it.
/// @param flat [n] float32, n a multiple of kFlatRow
/// @return [n / kFlatRow] float32 on the same device
at::Tensor row_norms(const at::Tensor& flat);

/// Euclidean norm of the whole from those of its rows: one float32 sum over millions of squares
/// would lose digits. @param norms [rows] @return [] float32 on the same device
at::Tensor norm_of_rows(const at::Tensor& norms);

/// Euclidean norm of FlatGradients::values(), by way of its rows.
/// @param flat [n] float32, n a multiple of kFlatRow
/// @return [] float32 on the same device
at::Tensor grad_norm(const at::Tensor& flat);

/// What to divide the gradients by so that their norm is at most `max_norm`: max(1, (norm + 1e-6) /
/// max_norm), the reciprocal of torch.nn.utils.clip_grad_norm_'s factor. Optimizer::step takes it,
/// so that clipping costs no pass of its own.
/// @return [] float32, on norm's device
at::Tensor clip_divisor(const at::Tensor& norm, double max_norm);

}  // namespace dalle2
