// SPDX-License-Identifier: MIT
#include "metrics/embedding_metrics.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>

namespace dalle2 {
namespace {

/// Rows of a table of similarities that are computed at once.
constexpr int64_t kQueriesAtOnce = 1024;

/// The ranks of all queries, made of a table of similarities that is never held whole.
/// @param ranks_of_rows gives those of some rows: (similarities [R, C], number of the first row) to [R]
template <class RanksOfRows>
at::Tensor ranks_of_queries(const at::Tensor& queries,
                            const at::Tensor& candidates,
                            const RanksOfRows& ranks_of_rows) {
  std::vector<at::Tensor> ranks;
  for (int64_t begin = 0; begin < queries.size(0); begin += kQueriesAtOnce) {
    const int64_t rows = std::min(kQueriesAtOnce, queries.size(0) - begin);
    ranks.push_back(ranks_of_rows(queries.narrow(0, begin, rows).matmul(candidates.t()), begin));
  }
  return at::cat(ranks);
}

/// For each row of `queries`, how many candidates are nearer than the own one, or as near.
/// @param own [n] int64, the index of the own candidate
at::Tensor ranks_of_own(const at::Tensor& queries,
                        const at::Tensor& candidates,
                        const at::Tensor& own) {
  return ranks_of_queries(queries, candidates, [&](const at::Tensor& near, int64_t begin) {
    const at::Tensor of_own = near.gather(1, own.narrow(0, begin, near.size(0)).unsqueeze(1));
    // Not "at least as near": NaN is neither.
    return (near < of_own).logical_not().sum(1) - 1;
  });
}

/// For each caption, how many pictures of other captions are nearer than its nearest own, or as near.
/// @param own [N] int64, the caption of each picture
at::Tensor ranks_of_nearest_own(const at::Tensor& captions,
                                const at::Tensor& pictures,
                                const at::Tensor& own) {
  return ranks_of_queries(captions, pictures, [&](const at::Tensor& near, int64_t begin) {
    const at::Tensor numbers = at::arange(begin, begin + near.size(0), own.options());
    const at::Tensor is_other = own.unsqueeze(0) != numbers.unsqueeze(1);
    const at::Tensor nearest = near.masked_fill(is_other, -std::numeric_limits<float>::infinity())
                                   .amax(1, /*keepdim=*/true);
    return (near < nearest).logical_not().logical_and(is_other).sum(1);
  });
}

double share_below(const at::Tensor& ranks, int64_t most) {
  return (ranks < most).to(at::kDouble).mean().item<double>();
}

/// Mean over the rows of the cosine of the angle between them, as torch's cosine_similarity.
double mean_cosine(const at::Tensor& a, const at::Tensor& b) {
  return at::cosine_similarity(a, b, 1, 1e-6).mean().item<double>();
}

}  // namespace

std::vector<std::pair<std::string, double>> retrieval_figures(const RetrievalSamples& samples) {
  if (!samples.pairs.defined() || samples.pairs.size(0) == 0) return {};
  const at::NoGradGuard no_grad;
  const at::Tensor pictures = samples.pairs.select(1, 0);
  const auto [ids, caption_of, counts] = at::_unique2(
      samples.captions.to(pictures.device()), /*sorted=*/true, /*return_inverse=*/true);
  // Of each caption its first row: equal captions have equal features.
  const at::Tensor rows = at::arange(caption_of.size(0), caption_of.options());
  const at::Tensor row_of =
      at::full_like(ids, caption_of.size(0)).scatter_reduce(0, caption_of, rows, "amin");
  const at::Tensor captions = samples.pairs.select(1, 1).index_select(0, row_of);
  const at::Tensor to_text = ranks_of_own(pictures, captions, caption_of);
  const at::Tensor to_image = ranks_of_nearest_own(captions, pictures, caption_of);
  return {{"image_to_text_R@1", share_below(to_text, 1)},
          {"image_to_text_R@5", share_below(to_text, 5)},
          {"text_to_image_R@1", share_below(to_image, 1)},
          {"text_to_image_R@5", share_below(to_image, 5)}};
}

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
