// SPDX-License-Identifier: MIT
// How near what a prior draws is to its texts and to the images they belong to.
#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "data/prior_dataset.h"
#include "diffusion/prior.h"

namespace dalle2 {

/// Draws image embeddings for texts.
using DrawEmbeddings = std::function<at::Tensor(const PriorSampleOptions& options)>;

/// Means over the rows of a batch of five cosines, with the reference's names: "baseline
/// similarity" of text and image, "similarity with text", "similarity with original image",
/// "similarity with unrelated caption" (the next row's text) of what is drawn, and "difference from
/// baseline similarity".
std::vector<std::pair<std::string, double>> prior_similarities(const PriorBatch& batch,
                                                               const PriorSampleOptions& options,
                                                               const at::Device& device,
                                                               const DrawEmbeddings& draw);

}  // namespace dalle2
