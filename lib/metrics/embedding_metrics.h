// SPDX-License-Identifier: MIT
// How well a CLIP finds the caption of a picture, and the picture of a caption; how near image embeddings
// that were drawn are to their texts and to the images they belong to.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

/// Features are of length 1. D: their width.
struct RetrievalSamples {
  at::Tensor pairs;     ///< [N, 2, D] float32: of pictures and of their captions
  at::Tensor captions;  ///< [N] int64: equal where the captions are
};

/// Shares of the pictures and of the different captions, 0 to 1, with open_clip's names:
/// "image_to_text_R@1", "image_to_text_R@5": the own caption is among the 1 or 5 nearest of all
/// different captions; "text_to_image_R@1", "text_to_image_R@5": a picture with that caption is among
/// the nearest pictures. Of equally near candidates, the right one counts as the last, so that features
/// that are all equal, or NaN, find nothing.
/// @return nothing without samples
std::vector<std::pair<std::string, double>> retrieval_figures(const RetrievalSamples& samples);

/// Means over the rows of five cosines, with the names of the reference's prior: "baseline
/// similarity" of text and image, "similarity with text", "similarity with original image",
/// "similarity with unrelated caption" (the next row's text) of what is drawn, and "difference from
/// baseline similarity".
/// @param texts @param images @param drawn [B, D] each
std::vector<std::pair<std::string, double>> embedding_similarities(const at::Tensor& texts,
                                                                   const at::Tensor& images,
                                                                   const at::Tensor& drawn);

}  // namespace dalle2
