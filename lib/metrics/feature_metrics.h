// SPDX-License-Identifier: MIT
// What sets of features say of generated pictures: FID, IS, KID, precision and recall; how well a CLIP finds the
// caption of a picture, and the picture of a caption; how near image embeddings that were drawn are to their texts
// and to the images they belong to.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dalle2 {

/// What a set's mean and covariance follow from.
struct FeatureSums {
  explicit FeatureSums(int64_t width = 0);
  /// @param features [n, d]
  void add(const at::Tensor& features);

  int64_t count = 0;
  at::Tensor sum;    ///< [d] float64
  at::Tensor outer;  ///< [d, d] float64, of the products of a row with itself
};

/// Fréchet distance of two sets of features (Heusel et al. 2017, arXiv 1706.08500, equation 6):
/// |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), covariances over n - 1; not below 0.
/// @param real [n, d] @param generated [m, d] float; n and m at least 2
/// Where n + m is small beside d, by the singular values of a matrix of n by m.
double frechet_distance(const at::Tensor& real, const at::Tensor& generated);

/// The same from sums: by eigenvalues of a symmetric matrix of d by d.
double frechet_distance(const FeatureSums& real, const FeatureSums& generated);

struct MeanAndDeviation {
  double mean = 0;
  double deviation = 0;  ///< NaN for a single part, where it is over n - 1
};

/// Inception score (Salimans et al. 2016, arXiv 1606.03498, section 4):
/// exp of the mean divergence of each sample's classes from those of its part, over `splits` parts
/// in a random order. Fewer samples than parts: a part a sample, as torch.chunk cuts. The deviation
/// is over n - 1, as torchmetrics has it.
/// @param logits [n, classes] @param generator of the order; none: as they come
MeanAndDeviation inception_score(const at::Tensor& logits,
                                 int64_t splits,
                                 std::optional<at::Generator> generator);

struct KernelOptions {
  int64_t subsets = 100;
  int64_t subset_size = 1000;
  int64_t degree = 3;
  std::optional<double> gamma = std::nullopt;  ///< none: 1 / d
  double coef = 1;
};

struct KernelDistance {
  double mean = 0;
  double deviation = 0;       ///< of the subsets, over their number: torchmetrics' KID_std
  double standard_error = 0;  ///< of the mean
};

/// Kernel inception distance (Binkowski et al. 2018, arXiv 1801.01401, section 4):
/// squared maximum mean discrepancy, unbiased, with the kernel (gamma x.y + coef)^degree, of subsets
/// that are drawn without replacement.
/// @param real [n, d] @param generated [m, d]; n and m at least subset_size, which is at least 2
KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               at::Generator generator);

/// The same of given subsets. @param of_real, of_generated [subsets, subset_size] int64, rows
KernelDistance kernel_distance(const at::Tensor& real,
                               const at::Tensor& generated,
                               const KernelOptions& options,
                               const at::Tensor& of_real,
                               const at::Tensor& of_generated);

struct PrecisionAndRecall {
  double precision = 0;  ///< share of generated samples within the real ones' neighbourhoods
  double recall = 0;     ///< share of real samples within the generated ones'
};

/// Improved precision and recall (Kynkäänniemi et al. 2019, arXiv 1904.06991, equations 1 and 2):
/// a set's manifold is the union of balls about its samples, each reaching to the k-th nearest
/// other sample of the set.
/// @param real [n, d] @param generated [m, d]; both more than `neighbours`
PrecisionAndRecall precision_and_recall(const at::Tensor& real,
                                        const at::Tensor& generated,
                                        int64_t neighbours = 3);

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
