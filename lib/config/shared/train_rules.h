// SPDX-License-Identifier: MIT
// Rules between options of `train` (and of the savers) for every kind of run that has them.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "config/decoder/decoder_config.h"
#include "config/reading/faults.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"

namespace dalle2 {

/// Warns of options that others switch off and refuses those that exclude each other. `defaults`
/// are those of the kind.
void check_shared_options(const SharedTrainConfig& train,
                          const SharedTrainConfig& defaults,
                          Faults& faults);

/// The same for what only diffusion models have.
void check_loss_options(const DreamConfig& dream, Faults& faults);

/// Refuses savers of adapters in a run without any. Asks only sections without faults.
void check_savers(const SharedTrainConfig& train, const TrackerConfig& tracker, Faults& faults);

/// All of them, for the config of a whole run, as far as its sections have no faults of their own.
template <class Config>
void check_train_rules(const Config& config, Faults& faults) {
  if (faults.has_error_under("/train")) return;
  check_shared_options(config.train, decltype(config.train)(), faults);
  if constexpr (requires { config.train.dream; }) check_loss_options(config.train.dream, faults);
  if (!faults.has_error_under("/tracker")) check_savers(config.train, config.tracker, faults);
}

/// Which network of a run a fault is about.
struct NetworkName {
  std::string name;     ///< "unet 1"
  std::string section;  ///< of the config: "decoder"
  std::string sample;   ///< what it is trained on: "image"
};
/// Of a unet, by its index from 0.
inline NetworkName network_name(size_t index) {
  return {fmt::format("unet {}", index + 1), "decoder", "image"};
}

/// Refuses DREAM for a network with an objective that it cannot train.
void check_dream(const DreamConfig& dream,
                 Objective objective,
                 const NetworkName& network,
                 Faults& faults);

/// The five noise schedules of the reference: beta_t for t = 0 .. timesteps-1. jsd holds the values as the reference's float32 has them.
std::vector<double> beta_schedule_values(BetaSchedule schedule, int64_t timesteps);

/// Refuses a schedule in which a beta reaches 1, where the maths would turn into NaN. The schedule
/// `jsd` is for the caller: it ends at 1 on purpose. @return whether all is well
bool check_betas(BetaSchedule schedule,
                 int64_t timesteps,
                 const NetworkName& network,
                 Faults& faults);

}  // namespace dalle2
