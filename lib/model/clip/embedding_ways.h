// SPDX-License-Identifier: MIT
// Ways between CLIP embeddings, as DALLE2 walks them (Ramesh et al. 2022, arXiv 2204.06125, sections
// 3.2 and 3.3). Legend: N ways, D width of embeddings.
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// Spherical interpolation: the direction turns at an even pace (Shoemake 1985), the length changes
/// evenly. Opposite directions, between which no turn is the shortest, are joined by a straight line.
/// @param from, to [N, D]; one row stands for all @param share of the way, 0 to 1 @return [N, D]
at::Tensor slerp(const at::Tensor& from, const at::Tensor& to, double share);

/// The direction from one text to another, of length 1. @param from, to [N, D] @return [N, D], NaN
/// where both are the same
at::Tensor text_difference(const at::Tensor& from, const at::Tensor& to);

}  // namespace dalle2
