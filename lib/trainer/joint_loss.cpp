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

GatheredRows features_of_all(const PassSettings& settings,
                             ProcessGroup* group,
                             const std::vector<PlacedChunk>& chunks,
                             const JointLoss& loss) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (const PlacedChunk& chunk : chunks) {
    const Autocast autocast(settings.device.type(), settings.precision);
    own.push_back(loss.features_of(chunk.batch, chunk.range).to(at::kFloat));
  }
  const at::Tensor rows = own.empty() ? at::Tensor() : at::cat(own);
  return group ? all_gather_rows(*group, rows, "features of the samples") : GatheredRows{rows, 0};
}

}  // namespace

at::Tensor accumulate_joint(TrainedPart& part,
                            const PassSettings& settings,
                            const std::vector<int64_t>& batches,
                            const JointLoss& loss) {
  const std::vector<PlacedChunk> chunks = chunks_of(batches, settings.max_batch_size);
  const GatheredRows features = timed(settings.step_times, StepPhase::kForward, [&] {
    return features_of_all(settings, part.group(), chunks, loss);
  });
  if (!features.rows.defined()) {
    part.send_gradients();
    return {};
  }
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
    const at::Tensor made = timed(settings.step_times, StepPhase::kForward, [&] {
      const Autocast autocast(settings.device.type(), settings.precision);
      return loss.features_of(chunk.batch, chunk.range);
    });
    if (i + 1 == chunks.size()) part.begin_last_pass();
    timed(settings.step_times, StepPhase::kBackward, [&] {
      const at::Tensor at_rows =
          leaves.grad().narrow(0, features.begin + chunk.row, chunk.range.length);
      part.backward_from(made, at_rows.to(made.scalar_type()));
    });
  }
  part.send_gradients();
  const at::Tensor value = total.detach();
  part.add_loss(is_main ? value : at::zeros_like(value));
  return value;
}

at::Tensor evaluate_joint(const PassSettings& settings,
                          ProcessGroup* group,
                          const std::vector<int64_t>& batches,
                          const JointLoss& loss) {
  const torch::NoGradGuard no_grad;
  const GatheredRows features =
      features_of_all(settings, group, chunks_of(batches, settings.max_batch_size), loss);
  return features.rows.defined() ? loss.loss_of(features.rows) : at::Tensor();
}

}  // namespace dalle2
