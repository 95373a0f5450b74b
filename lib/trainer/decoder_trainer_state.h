// SPDX-License-Identifier: MIT
// What a DecoderTrainer is made of: seen by its own source files only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "model/lora.h"
#include "optim/flat_parameters.h"
#include "optim/grad_scaler.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "optim/trained_parameters.h"
#include "trainer/decoder_trainer.h"
#include "trainer/post_hoc_averages.h"
#include "trainer/unet_average.h"

namespace dalle2 {

/// A unet that is trained, with all that belongs to it.
struct TrainedUnet {
  TrainedUnet(std::shared_ptr<UnetImpl> network,
              const OptimizerOptions& optimizer_options,
              const LrSchedule& lr_schedule,
              double max_norm)
      : unet(std::move(network)),
        parameters(*unet, trained_parameters(*unet)),
        gradients(parameters),
        optimizer(parameters, optimizer_options),
        schedule(lr_schedule),
        max_grad_norm(max_norm) {}

  std::shared_ptr<UnetImpl> unet;
  FlatParameters parameters;
  FlatGradients gradients;
  Optimizer optimizer;
  LrSchedule schedule;
  double max_grad_norm;
  std::unique_ptr<UnetAverage> average;       ///< null without averages
  std::unique_ptr<PostHocAverages> post_hoc;  ///< null without such
  std::shared_ptr<LoraDropout> dropout;       ///< of its adapters; null without
  at::Tensor grad_norm;                       ///< [] of the last update
  at::Tensor loss;                   ///< [] sum since the last update; undefined before one
  std::optional<GradScaler> scaler;  ///< with fp16
  UpdateOutcome outcome;             ///< of the last update
  SkippedUpdates skipped;

  void add_loss(const at::Tensor& more);
  /// Steps the optimizer, unless a gradient or the loss is not finite; what is counted and averaged
  /// waits for settle(). Reads nothing back from the device.
  void make_update(double lr);
  /// Counts and averages the last update if it was made, counts it as skipped if not; waits for the
  /// device if need be. @return true if it was made and has not been settled before
  bool settle();
};

/// Null where the stage is not trained.
using TrainedUnets = std::vector<std::unique_ptr<TrainedUnet>>;

struct DecoderTrainerState {
  Decoder decoder;
  at::Device device;
  bool use_ema;
  EmaKind ema_kind;
  std::optional<int64_t> max_batch_size;
  TrainedUnets unets;
  std::vector<int64_t> steps;                   ///< updates of each unet
  std::optional<LoraInfo> lora = std::nullopt;  ///< none: the unets themselves are trained
  StageTimes* stage_times = nullptr;            ///< of whoever wants to know
  PrecisionChoice precision = {};
  double learning_rate_factor = 1.0;
  /// Behind each update, not before the next: on the CPU, where nothing is to be waited for, and
  /// where an average changes the weights, which the next forward pass reads.
  bool settles_at_once = true;

  void settle(size_t i);
  void settle_all();
};

/// Puts the averaged unets into the decoder for as long as it lives.
class AveragesInPlace {
 public:
  AveragesInPlace(Decoder decoder, const TrainedUnets& unets);
  ~AveragesInPlace();
  AveragesInPlace(const AveragesInPlace&) = delete;
  AveragesInPlace& operator=(const AveragesInPlace&) = delete;

 private:
  Decoder decoder_;
  std::vector<std::shared_ptr<UnetImpl>> live_;  ///< null where nothing was swapped
};

}  // namespace dalle2
