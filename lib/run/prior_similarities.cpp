// SPDX-License-Identifier: MIT
#include "run/prior_similarities.h"

#include <torch/types.h>

namespace dalle2 {
namespace {

/// Mean over the rows of the cosine of the angle between them, as torch's cosine_similarity.
double mean_cosine(const at::Tensor& a, const at::Tensor& b) {
  return at::cosine_similarity(a, b, 1, 1e-6).mean().item<double>();
}

}  // namespace

std::vector<std::pair<std::string, double>> prior_similarities(const PriorBatch& batch,
                                                               const PriorSampleOptions& options,
                                                               const at::Device& device,
                                                               const DrawEmbeddings& draw) {
  const at::Tensor images = batch.image_embeds.to(device);  // [B, D]
  const at::Tensor texts = batch.text_embeds.to(device);    // [B, D]
  PriorSampleOptions of_batch = options;
  of_batch.text = {batch.text_embeds, batch.text_encodings};
  const at::Tensor drawn = draw(of_batch);  // [B, D]
  const double baseline = mean_cosine(texts, images);
  const double with_text = mean_cosine(texts, drawn);
  return {{"baseline similarity", baseline},
          {"similarity with text", with_text},
          {"similarity with original image", mean_cosine(images, drawn)},
          {"similarity with unrelated caption", mean_cosine(texts.roll(1, 0), drawn)},
          {"difference from baseline similarity", with_text - baseline}};
}

}  // namespace dalle2
