// SPDX-License-Identifier: MIT
// The loss of CLIP (Radford et al. 2021, arXiv 2103.00020, figure 3).
#pragma once

#include <ATen/core/Tensor.h>

namespace dalle2 {

/// Features of a picture and of its text as one row, what a joint loss gathers over ranks.
/// @param images, texts [B, D], of any length @return [B, 2, D] float32, each of length 1
at::Tensor pair_features(const at::Tensor& images, const at::Tensor& texts);

/// Mean of the two cross entropies, in nats: of the own text among all texts by the cosine times
/// exp(logit_scale), and of the own picture among all pictures.
/// @param pairs [B, 2, D], by pair_features() @param logit_scale [] @return []
at::Tensor contrastive_loss(const at::Tensor& pairs, const at::Tensor& logit_scale);

}  // namespace dalle2
