// SPDX-License-Identifier: MIT
// How near image embeddings that were drawn are to their texts and to the images they belong to.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

/// Means over the rows of five cosines, with the names of the reference's prior: "baseline
/// similarity" of text and image, "similarity with text", "similarity with original image",
/// "similarity with unrelated caption" (the next row's text) of what is drawn, and "difference from
/// baseline similarity".
/// @param texts @param images @param drawn [B, D] each
std::vector<std::pair<std::string, double>> embedding_similarities(const at::Tensor& texts,
                                                                   const at::Tensor& images,
                                                                   const at::Tensor& drawn);

}  // namespace dalle2
