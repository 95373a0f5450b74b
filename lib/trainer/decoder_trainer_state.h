// SPDX-License-Identifier: MIT
// What a DecoderTrainer is made of: seen by its own source files only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "optim/trained_parameters.h"
#include "trainer/decoder_trainer.h"
#include "trainer/trained_network.h"

namespace dalle2 {

/// A unet that is trained, with all that belongs to it.
struct TrainedUnet : TrainedNetwork {
  TrainedUnet(std::shared_ptr<UnetImpl> network,
              const OptimizerOptions& optimizer_options,
              const LrSchedule& lr_schedule,
              double max_norm)
      : TrainedNetwork(
            *network, trained_parameters(*network), optimizer_options, lr_schedule, max_norm),
        unet(std::move(network)) {}

  /// A unet in eval mode with the averaged weights. Only with averages.
  std::shared_ptr<UnetImpl> averaged_unet() const {
    return std::static_pointer_cast<UnetImpl>(average->network());
  }

  std::shared_ptr<UnetImpl> unet;
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

  /// With chunks of `max_batch_size` samples, or the config's.
  PassSettings pass_settings(std::optional<int64_t> chunk) const {
    return {device, precision.precision, stage_times, chunk ? chunk : max_batch_size};
  }
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
