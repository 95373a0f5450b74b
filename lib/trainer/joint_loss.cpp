// SPDX-License-Identifier: MIT
#include "trainer/joint_loss.h"

#include <torch/torch.h>

#include <utility>

#include "dist/gather_rows.h"

namespace dalle2 {
namespace {

/// A chunk of one of the batches, and where its rows begin among this rank's.
struct PlacedChunk {
  size_t batch = 0;
  ChunkRange range;
  int64_t row = 0;
};

std::vector<PlacedChunk> chunks_of(const std::vector<int64_t>& batches,
                                   std::optional<int64_t> max_batch_size) {
  std::vector<PlacedChunk> chunks;
  int64_t row = 0;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    if (batches[batch] == 0) continue;
    for (const ChunkRange& range : chunk_ranges(batches[batch], max_batch_size)) {
      chunks.push_back({batch, range, row});
      row += range.length;
    }
  }
  return chunks;
}

at::Tensor features_of_chunk(const PassSettings& settings,
                             const PlacedChunk& chunk,
                             const JointLoss& loss) {
  const Autocast autocast(settings.device.type(), settings.precision);
  return loss.features_of(chunk.batch, chunk.range);
}

/// [n, ...] float32, without a graph; undefined without samples.
at::Tensor features_of(const PassSettings& settings,
                       const std::vector<PlacedChunk>& chunks,
                       const JointLoss& loss) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const PlacedChunk& chunk : chunks)
    own.push_back(features_of_chunk(settings, chunk, loss).to(at::kFloat));
  return own.empty() ? at::Tensor() : at::cat(own);
}

/// All passes of an update. @return [] the loss, detached; undefined if no rank has samples
at::Tensor joint_passes(TrainedPart& part,
                        const JointLoss& loss,
                        const std::vector<PlacedChunk>& chunks) {
  const PassSettings& settings = part.settings;
  at::Tensor kept;  // of a single chunk, with its graph: it goes through the network once
  const GatheredRows features = timed(settings.step_times, StepPhase::kForward, [&] {
    if (chunks.size() == 1) kept = features_of_chunk(settings, chunks.front(), loss);
    const at::Tensor own =
        kept.defined() ? kept.detach().to(at::kFloat) : features_of(settings, chunks, loss);
    return part.group() ? all_gather_rows(*part.group(), own, "features of the samples")
                        : GatheredRows{own, 0};
  });
  if (!features.rows.defined()) return {};
  const at::Tensor leaves = features.rows.detach().requires_grad_();
  const at::Tensor total =
      timed(settings.step_times, StepPhase::kForward, [&] { return loss.loss_of(leaves); });
  // All ranks have the same loss, and gradients are added up over them: the parameters that it uses
  // itself get theirs from one of them.
  const bool is_main = !part.group() || part.group()->is_main();
  timed(settings.step_times, StepPhase::kBackward, [&] {
    const at::Tensor root = part.scaled(total);
    if (is_main) {
      part.backward_from(root, {}, {leaves});
    } else {
      torch::autograd::backward({root}, {}, std::nullopt, /*create_graph=*/false, {leaves});
    }
  });
  for (size_t i = 0; i < chunks.size(); ++i) {
    const PlacedChunk& chunk = chunks[i];
    const at::Tensor made =
        kept.defined() ? kept : timed(settings.step_times, StepPhase::kForward, [&] {
          return features_of_chunk(settings, chunk, loss);
        });
    if (i + 1 == chunks.size()) part.begin_exchange();
    timed(settings.step_times, StepPhase::kBackward, [&] {
      const at::Tensor at_rows =
          leaves.grad().narrow(0, features.begin + chunk.row, chunk.range.length);
      part.backward_from(made, at_rows.to(made.scalar_type()));
    });
  }
  return total.detach();
}

}  // namespace

at::Tensor accumulate_joint(TrainedPart& part, const JointLoss& loss) {
  const std::vector<PlacedChunk> chunks = chunks_of(loss.batches, part.settings.max_batch_size);
  const at::Tensor total = joint_passes(part, loss, chunks);
  part.finish_exchange();
  if (!total.defined()) return {};
  const bool is_main = !part.group() || part.group()->is_main();
  part.add_loss(is_main ? total : at::zeros_like(total));
  return total;
}

at::Tensor evaluate_joint(const PassSettings& settings, const JointLoss& loss) {
  const torch::NoGradGuard no_grad;
  return loss.loss_of(
      features_of(settings, chunks_of(loss.batches, settings.max_batch_size), loss));
}

}  // namespace dalle2
