// SPDX-License-Identifier: MIT
#include "metrics/feature_metrics.h"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/this_process.h"

namespace dalle2 {
namespace {

/// Rows of a set that are turned into float64 at once.
constexpr int64_t kRowsAtOnce = 1024;

at::Tensor centred(const at::Tensor& features) {
  const at::Tensor rows = features.to(at::kDouble);
  return rows - rows.mean(0, /*keepdim=*/true);
}

/// The covariance's square root (symmetric, positive semi-definite); rounding below 0 counts as 0.
at::Tensor square_root(const at::Tensor& covariance) {
  const auto [values, vectors] = at::linalg_eigh(covariance);
  return at::matmul(vectors * values.clamp_min(0).sqrt(), vectors.t());
}

at::Tensor subsets_of(int64_t rows, const KernelOptions& options, at::Generator& generator) {
  std::vector<at::Tensor> drawn;
  for (int64_t subset = 0; subset < options.subsets; ++subset) {
    still_working();
    drawn.push_back(at::randperm(rows, generator, at::kLong).narrow(0, 0, options.subset_size));
  }
  return at::stack(drawn);
}

/// Rows of a matrix of distances that are there at once.
constexpr int64_t kPairsAtOnce = int64_t{1} << 22;

/// Calls `use(begin, distances [rows, m])` for the rows of a, some at a time.
template <typename Use>
void for_distances(const at::Tensor& a, const at::Tensor& b, const Use& use) {
  const int64_t step = std::max<int64_t>(1, kPairsAtOnce / b.size(0));
  for (int64_t begin = 0; begin < a.size(0); begin += step) {
    still_working();
    use(begin, at::cdist(a.narrow(0, begin, std::min(step, a.size(0) - begin)), b));
  }
}

/// [n] to the k-th nearest other row.
at::Tensor radii_of(const at::Tensor& rows, int64_t neighbours) {
  std::vector<at::Tensor> radii;
  for_distances(rows, rows, [&](int64_t, const at::Tensor& distances) {
    // The nearest is the row itself.
    radii.push_back(std::get<0>(distances.kthvalue(neighbours + 1, 1)));
  });
  return at::cat(radii);
}

/// Share of `points` within a ball about a row of `set`.
double share_within(const at::Tensor& points, const at::Tensor& set, const at::Tensor& radii) {
  int64_t within = 0;
  for_distances(points, set, [&](int64_t, const at::Tensor& distances) {
    within += (distances <= radii).any(1).sum().item<int64_t>();
  });
  return static_cast<double>(within) / static_cast<double>(points.size(0));
}

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

FeatureSums::FeatureSums(int64_t width)
    : sum(at::zeros({width}, at::kDouble)), outer(at::zeros({width, width}, at::kDouble)) {}

void FeatureSums::add(const at::Tensor& features) {
  for (int64_t begin = 0; begin < features.size(0); begin += kRowsAtOnce) {
    still_working();
    const at::Tensor rows =
        features.narrow(0, begin, std::min(kRowsAtOnce, features.size(0) - begin)).to(at::kDouble);
    sum += rows.sum(0);
    outer.addmm_(rows.t(), rows);
  }
  count += features.size(0);
}

double frechet_distance(const at::Tensor& real, const at::Tensor& generated) {
  if (real.size(0) + generated.size(0) > 2 * real.size(1)) {
    FeatureSums of_real(real.size(1)), of_generated(real.size(1));
    of_real.add(real);
    of_generated.add(generated);
    return frechet_distance(of_real, of_generated);
  }
  // S1 = A'A with A the centred rows over (n - 1)^(1/2), S2 = B'B likewise. The eigenvalues of S1 S2
  // that are not 0 are the squared singular values of AB'.
  const at::Tensor a = centred(real), b = centred(generated);
  still_working();
  const double n = static_cast<double>(real.size(0)), m = static_cast<double>(generated.size(0));
  const double root_trace =
      at::linalg_svdvals(at::matmul(a, b.t())).sum().item<double>() / std::sqrt((n - 1) * (m - 1));
  const at::Tensor apart = real.to(at::kDouble).mean(0) - generated.to(at::kDouble).mean(0);
  const double distance = apart.square().sum().item<double>() +
                          a.square().sum().item<double>() / (n - 1) +
                          b.square().sum().item<double>() / (m - 1) - 2 * root_trace;
  return std::max(distance, 0.0);
}

double frechet_distance(const FeatureSums& real, const FeatureSums& generated) {
  const auto mean_of = [](const FeatureSums& sums) {
    return sums.sum / static_cast<double>(sums.count);
  };
  const auto covariance_of = [&](const FeatureSums& sums) {
    const at::Tensor mean = mean_of(sums);
    return (sums.outer - static_cast<double>(sums.count) * at::outer(mean, mean)) /
           static_cast<double>(sums.count - 1);
  };
  const at::Tensor s1 = covariance_of(real), s2 = covariance_of(generated);
  still_working();
  // (S1 S2)^(1/2) has the trace of (R S2 R)^(1/2) with R = S1^(1/2), and R S2 R is symmetric.
  const at::Tensor root = square_root(s1);
  still_working();
  const at::Tensor inner = at::matmul(at::matmul(root, s2), root);
  still_working();
  const double root_trace =
      at::linalg_eigvalsh((inner + inner.t()) / 2).clamp_min(0).sqrt().sum().item<double>();
  const double distance = (mean_of(real) - mean_of(generated)).square().sum().item<double>() +
                          s1.trace().item<double>() + s2.trace().item<double>() - 2 * root_trace;
  return std::max(distance, 0.0);
}

MeanAndDeviation inception_score(const at::Tensor& logits,
                                 int64_t splits,
                                 std::optional<at::Generator> generator) {
  at::Tensor rows = logits.to(at::kDouble);
  if (generator) rows = rows.index_select(0, at::randperm(rows.size(0), generator, at::kLong));
  const at::Tensor log_p = rows.log_softmax(1);
  std::vector<double> scores;
  for (const at::Tensor& part : log_p.chunk(splits, 0)) {
    still_working();
    const at::Tensor p = part.exp();
    const at::Tensor log_mean = p.mean(0, /*keepdim=*/true).log();
    // A class that no sample of the part has is 0 * (log 0 - log 0).
    const at::Tensor terms = at::where(p > 0, p * (part - log_mean), at::zeros({}, p.options()));
    scores.push_back(std::exp(terms.sum(1).mean().item<double>()));
  }
  const at::Tensor all = at::tensor(scores, at::kDouble);
  return {all.mean().item<double>(),
          scores.size() > 1 ? all.std(/*unbiased=*/true).item<double>()
                            : std::numeric_limits<double>::quiet_NaN()};
}

KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               at::Generator generator) {
  const at::Tensor of_real = subsets_of(real.size(0), options, generator);
  return kernel_distance(
      real, generated, options, of_real, subsets_of(generated.size(0), options, generator));
}

KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               const at::Tensor& of_real,
                               const at::Tensor& of_generated) {
  const double gamma = options.gamma.value_or(1.0 / static_cast<double>(real.size(1)));
  const at::Tensor x = real.to(at::kDouble), y = generated.to(at::kDouble);
  const auto kernel = [&](const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor base = at::matmul(a, b.t()).mul_(gamma).add_(options.coef);
    at::Tensor power = base.clone();
    for (int64_t k = 1; k < options.degree; ++k) power.mul_(base);
    return power;
  };
  std::vector<double> distances;
  for (int64_t subset = 0; subset < of_real.size(0); ++subset) {
    still_working();
    const at::Tensor a = x.index_select(0, of_real[subset]);
    const at::Tensor b = y.index_select(0, of_generated[subset]);
    const auto m = static_cast<double>(a.size(0));
    const auto off_diagonal = [](const at::Tensor& k) { return k.sum() - k.trace(); };
    const at::Tensor within = off_diagonal(kernel(a, a)) + off_diagonal(kernel(b, b));
    const at::Tensor between = kernel(a, b).sum();
    distances.push_back((within / (m * (m - 1)) - 2 * between / (m * m)).item<double>());
  }
  const at::Tensor all = at::tensor(distances, at::kDouble);
  const double deviation = all.std(/*unbiased=*/false).item<double>();
  return {all.mean().item<double>(),
          deviation,
          distances.size() > 1 ? deviation / std::sqrt(static_cast<double>(distances.size() - 1))
                               : std::nan("")};
}

PrecisionAndRecall precision_and_recall(const at::Tensor& real,
                                        const at::Tensor& generated,
                                        int64_t neighbours) {
  const at::Tensor x = real.to(at::kDouble), y = generated.to(at::kDouble);
  return {share_within(y, x, radii_of(x, neighbours)), share_within(x, y, radii_of(y, neighbours))};
}

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
