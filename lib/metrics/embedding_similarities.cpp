// SPDX-License-Identifier: MIT
#include "metrics/embedding_similarities.h"

#include <ATen/ATen.h>

namespace dalle2 {
namespace {

/// Mean over the rows of the cosine of the angle between them, as torch's cosine_similarity.
double mean_cosine(const at::Tensor& a, const at::Tensor& b) {
  return at::cosine_similarity(a, b, 1, 1e-6).mean().item<double>();
}

}  // namespace

std::vector<std::pair<std::string, double>> embedding_similarities(const at::Tensor& texts,
                                                                   const at::Tensor& images,
                                                                   const at::Tensor& drawn) {
  const double baseline = mean_cosine(texts, images);
  const double with_text = mean_cosine(texts, drawn);
  return {{"baseline similarity", baseline},
          {"similarity with text", with_text},
          {"similarity with original image", mean_cosine(images, drawn)},
          {"similarity with unrelated caption", mean_cosine(texts.roll(1, 0), drawn)},
          {"difference from baseline similarity", with_text - baseline}};
}

}  // namespace dalle2
