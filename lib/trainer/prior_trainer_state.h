// SPDX-License-Identifier: MIT
// What a PriorTrainer is made of: seen by its own source files only.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "trainer/prior_trainer.h"
#include "trainer/trained_network.h"

namespace dalle2 {

struct PriorTrainerState {
  DiffusionPrior prior;
  at::Device device;
  PriorTrainConfig config;
  PrecisionChoice precision = {};
  std::unique_ptr<TrainedNetwork> trained = nullptr;
  int64_t steps = 0;
  std::optional<LoraInfo> lora = std::nullopt;  ///< none: the network itself is trained
  StageTimes* stage_times = nullptr;            ///< of whoever wants to know
  /// Behind each update, not before the next: on the CPU, where nothing is to be waited for, and
  /// where an average changes the weights, which the next forward pass reads.
  bool settles_at_once = true;

  void settle() {
    if (trained->settle()) ++steps;
  }
  /// With chunks of `max_batch_size` samples, or the config's.
  PassSettings pass_settings(std::optional<int64_t> chunk) const {
    return {device, precision.precision, stage_times, chunk ? chunk : config.max_batch_size};
  }
  /// Only with an average.
  std::shared_ptr<PriorNetworkImpl> averaged_net() const {
    return std::static_pointer_cast<PriorNetworkImpl>(trained->average->network());
  }
};

/// Puts the averaged network, where there is one, into the prior for as long as it lives.
class AverageInPlace {
 public:
  explicit AverageInPlace(const PriorTrainerState& state) : prior_(state.prior) {
    if (state.trained->average) live_ = prior_->swap_net(state.averaged_net());
  }
  ~AverageInPlace() {
    if (live_) prior_->swap_net(live_);
  }
  AverageInPlace(const AverageInPlace&) = delete;
  AverageInPlace& operator=(const AverageInPlace&) = delete;

 private:
  DiffusionPrior prior_;
  std::shared_ptr<PriorNetworkImpl> live_;  ///< null where nothing was swapped
};

}  // namespace dalle2
