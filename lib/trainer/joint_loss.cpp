// SPDX-License-Identifier: MIT
#include "trainer/joint_loss.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "dist/process_group.h"
#include "trainer/lanes.h"

namespace dalle2 {
namespace {

/// A chunk of one of the batches, and where its rows begin among this rank's.
struct PlacedChunk {
  size_t batch = 0;
  ChunkRange range;
  int64_t row = 0;
};

/// What goes through the network, in lanes.
struct JointPasses {
  std::vector<PlacedChunk> chunks;
  int64_t lanes = 1;

  bool at_once() const { return static_cast<int64_t>(chunks.size()) <= lanes; }
};

/// @param plan_of gives the LanePlan of a batch; called with the number of samples of the largest
JointPasses passes_of(const std::vector<int64_t>& batches, const auto& plan_of) {
  const LanePlan plan = plan_of(batches.empty() ? 0 : *std::ranges::max_element(batches));
  JointPasses passes{.chunks = {}, .lanes = plan.lanes};
  int64_t row = 0;
  for (size_t batch = 0; batch < batches.size(); ++batch) {
    if (batches[batch] == 0) continue;
    for (const ChunkRange& range : chunk_ranges(batches[batch], plan.max_batch_size)) {
      passes.chunks.push_back({batch, range, row});
      row += range.length;
    }
  }
  return passes;
}

at::Tensor features_of_chunk(const PassSettings& settings,
                             const PlacedChunk& chunk,
                             const JointLoss& loss) {
  const Autocast autocast(settings.device.type(), settings.precision);
  return loss.features_of(chunk.batch, chunk.range);
}

/// Features of all chunks; with gradients enabled each has its graph.
std::vector<at::Tensor> features_of(const PassSettings& settings,
                                    const JointPasses& passes,
                                    const JointLoss& loss) {
  std::vector<at::Tensor> made(passes.chunks.size());
  in_lanes(passes.lanes, made.size(), [&](int64_t /*lane*/, size_t i) {
    made[i] = features_of_chunk(settings, passes.chunks[i], loss);
  });
  return made;
}

/// [n, ...] float32, without a graph; undefined without samples.
at::Tensor joined(const std::vector<at::Tensor>& features) {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& chunk : features) rows.push_back(chunk.detach().to(at::kFloat));
  if (rows.size() < 2) return rows.empty() ? at::Tensor() : rows.front();
  return at::cat(rows);
}

/// All passes of an update. @return [] the loss, detached; undefined if no rank has samples
at::Tensor joint_passes(TrainedPart& part, const JointLoss& loss, const JointPasses& passes) {
  const PassSettings& settings = part.settings;
  std::vector<at::Tensor> kept;  // features with their graphs: they go through the network once
  const GatheredRows features = timed(settings.step_times, StepPhase::kForward, [&] {
    const at::AutoGradMode with_graph(passes.at_once());
    std::vector<at::Tensor> made = features_of(settings, passes, loss);
    const at::Tensor own = joined(made);
    if (passes.at_once()) kept = std::move(made);
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
      part.backward_from(/*lane=*/0, root, {});
    } else {
      torch::autograd::backward({root}, {}, std::nullopt, /*create_graph=*/false, {leaves});
    }
  });
  const std::vector<PlacedChunk>& chunks = passes.chunks;
  const auto pass_back = [&](int64_t lane, size_t i) {
    at::Tensor made = kept.empty() ? at::Tensor() : std::move(kept[i]);
    if (!made.defined()) {
      made = timed(part.times_of(lane), StepPhase::kForward, [&] {
        return features_of_chunk(settings, chunks[i], loss);
      });
    }
    if (passes.lanes == 1 && i + 1 == chunks.size()) part.begin_exchange();
    timed(part.times_of(lane), StepPhase::kBackward, [&] {
      const at::Tensor at_rows =
          leaves.grad().narrow(0, features.begin + chunks[i].row, chunks[i].range.length);
      part.backward_from(lane, made, at_rows.to(made.scalar_type()));
    });
  };
  part.pass_in_lanes(passes.lanes, chunks.size(), /*is_last=*/true, pass_back);
  return total.detach();
}

}  // namespace

at::Tensor accumulate_joint(TrainedPart& part, const JointLoss& loss) {
  const JointPasses passes =
      passes_of(loss.batches, [&](int64_t batch) { return part.plan_lanes(batch); });
  const at::Tensor total = joint_passes(part, loss, passes);
  part.finish_exchange();
  if (!total.defined()) return {};
  const bool is_main = !part.group() || part.group()->is_main();
  add_to(part.loss, is_main ? total : at::zeros_like(total));
  return total;
}

JointEvaluation evaluate_joint(const PassSettings& settings, const JointLoss& loss) {
  const torch::NoGradGuard no_grad;
  // In eval mode no pass needs the whole batch.
  const PassSettings in_eval{.device = settings.device, .max_batch_size = settings.max_batch_size};
  const JointPasses passes =
      passes_of(loss.batches, [&](int64_t batch) { return plan_lanes(in_eval, batch); });
  const at::Tensor features = joined(features_of(settings, passes, loss));
  return {loss.loss_of(features), features};
}

}  // namespace dalle2
