// SPDX-License-Identifier: MIT
// Losses of all samples of an update together, which are no mean over the samples, as that of CLIP
// is: the batches of an accumulation, the chunks of max_batch_size and the ranks change neither loss
// nor gradients (GradCache, Gao et al. 2021, arXiv 2101.06983).
//
// The features of all samples are made without a graph and gathered over the ranks; each rank takes
// the same loss of them all and its gradient at the features; then each chunk goes through the
// network again, with a graph, and back from the gradient at its rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "trainer/tensor_group.h"
#include "trainer/trained_part.h"

namespace dalle2 {

struct JointLoss {
  /// Features of a chunk of one of the batches, [n, ...]. Asked twice for each chunk when gradients
  /// are made: what it draws has to be the same both times.
  std::function<at::Tensor(size_t batch, const ChunkRange& range)> features_of;
  /// [] float32 of the features of all samples, [N, ...] float32; the same on all ranks. Parameters
  /// that it uses besides, a temperature, get their gradient, too.
  std::function<at::Tensor(const at::Tensor& features)> loss_of;
};

/// Gradients of a whole update; TrainedPart::make_update() follows. All ranks call it, those without
/// samples as well.
/// @param batches samples of each batch on this rank
/// @return [] the loss, detached; undefined if no rank has samples
at::Tensor accumulate_joint(TrainedPart& part,
                            const PassSettings& settings,
                            const std::vector<int64_t>& batches,
                            const JointLoss& loss);

/// The same loss without gradients and without effect. @param group null: the process is alone
at::Tensor evaluate_joint(const PassSettings& settings,
                          ProcessGroup* group,
                          const std::vector<int64_t>& batches,
                          const JointLoss& loss);

}  // namespace dalle2
