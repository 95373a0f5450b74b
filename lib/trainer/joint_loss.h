// SPDX-License-Identifier: MIT
// Losses of all samples of an update together, which are no mean over the samples, as that of CLIP
// is: the batches of an accumulation, the chunks of max_batch_size and the ranks change neither loss
// nor gradients (GradCache, Gao et al. 2021, arXiv 2101.06983).
//
// The features of all samples are made without a graph and gathered over the ranks; each rank takes the same loss of
// them all and its gradient at the features; then each chunk goes through the network again, with a graph, and back
// from the gradient at its rows. A rank whose chunks all go through at once keeps the graphs of the first pass instead.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/tensor_group.h"
#include "trainer/trained_part.h"

namespace dalle2 {

struct JointLoss {
  std::vector<int64_t> batches;  ///< samples of each on this rank
  /// Features of a chunk of one of the batches, [n, ...]. Asked up to twice for each chunk when
  /// gradients are made: what it draws has to be the same both times. Lanes ask at the same time.
  std::function<at::Tensor(size_t batch, const ChunkRange& range)> features_of;
  /// [] float32 of the features of all samples, [N, ...] float32; the same on all ranks. Parameters
  /// that it uses besides, a temperature, get their gradient too.
  std::function<at::Tensor(const at::Tensor& features)> loss_of;
};

/// Gradients of a whole update; TrainedPart::update() follows. All ranks call it, those without
/// samples as well.
/// @return [] the loss, detached; undefined if no rank has samples
at::Tensor accumulate_joint(TrainedPart& part, const JointLoss& loss);

struct JointEvaluation {
  at::Tensor loss;      ///< []
  at::Tensor features;  ///< [n, ...] float32, of all samples in their order
};

/// Of this rank's samples alone, at least one, without gradients and without effect: a mean of such
/// losses does not grow with the number of ranks.
JointEvaluation evaluate_joint(const PassSettings& settings, const JointLoss& loss);

}  // namespace dalle2
