// SPDX-License-Identifier: MIT
// A network that is trained, with its optimizer, its schedule, its averages and its last update.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/lora.h"
#include "optim/flat_parameters.h"
#include "optim/grad_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/precision.h"
#include "trainer/chunks.h"
#include "trainer/post_hoc_averages.h"
#include "trainer/stage_times.h"
#include "trainer/update_outcome.h"
#include "trainer/weight_average.h"

namespace dalle2 {

/// How a batch goes through a network.
struct PassSettings {
  at::Device device;
  MixedPrecision precision = MixedPrecision::no;
  StageTimes* stage_times = nullptr;      ///< of whoever wants to know
  std::optional<int64_t> max_batch_size;  ///< samples at once; none: the whole batch
};

/// Mean loss of a chunk of the batch. [] float32
using ChunkLoss = std::function<at::Tensor(const ChunkRange& range)>;

struct TrainedNetwork {
  /// @param names of the parameters that the optimizer and the averages know
  TrainedNetwork(const torch::nn::Module& network,
                 const std::vector<std::string>& names,
                 const OptimizerOptions& optimizer_options,
                 const LrSchedule& lr_schedule,
                 double max_norm)
      : parameters(network, names),
        gradients(parameters),
        optimizer(parameters, optimizer_options),
        schedule(lr_schedule),
        max_grad_norm(max_norm) {}

  FlatParameters parameters;
  FlatGradients gradients;
  Optimizer optimizer;
  LrSchedule schedule;
  double max_grad_norm;                       ///< infinite: gradients are not clipped
  std::unique_ptr<WeightAverage> average;     ///< null without averages
  std::unique_ptr<PostHocAverages> post_hoc;  ///< null without such
  std::shared_ptr<LoraDropout> dropout;       ///< of its adapters; null without
  at::Tensor grad_norm;                       ///< [] of the last update
  at::Tensor loss;                   ///< [] sum since the last update; undefined before one
  std::optional<GradScaler> scaler;  ///< with fp16
  UpdateOutcome outcome;             ///< of the last update
  SkippedUpdates skipped;

  /// Forward and backward of `batch` samples, each chunk weighted by its size and `weight`, so that
  /// loss and gradients are those of the whole batch; they add up until make_update().
  /// @return [] the loss times `weight`, detached
  at::Tensor accumulate(const PassSettings& settings,
                        int64_t batch,
                        double weight,
                        const ChunkLoss& loss_of);
  void add_loss(const at::Tensor& more);
  /// Steps the optimizer, unless a gradient or the loss is not finite; what is counted and averaged
  /// waits for settle(). Reads nothing back from the device.
  void make_update(double lr);
  /// Counts and averages the last update if it was made, counts it as skipped if not; waits for the
  /// device if need be. @return true if it was made and has not been settled before
  bool settle();
};

/// The same loss without gradients and without effect.
at::Tensor evaluate_in_chunks(const PassSettings& settings,
                              int64_t batch,
                              const ChunkLoss& loss_of);

}  // namespace dalle2
