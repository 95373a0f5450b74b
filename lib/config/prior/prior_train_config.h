// SPDX-License-Identifier: MIT
// `train` of a prior config.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "config/reading/count_limits.h"
#include "config/shared/train_options.h"

namespace dalle2 {

/// What only a prior has.
struct PriorOnlyTrainConfig {
  int64_t save_every_seconds = 3600;
  std::vector<int64_t> eval_timesteps = {64};
  double best_validation_loss = 1e9;
  int64_t current_epoch = 0;
  int64_t num_samples_seen = 0;
  int64_t random_seed = 0;

  void fields(auto& f) {
    D2_FIELD(save_every_seconds, "Seconds between two saves.", within(0, most::kSeconds));
    D2_FIELD(eval_timesteps,
             "With how many steps samples are drawn for the similarities of a validation; each "
             "from `prior.sample_timesteps` to `prior.timesteps`.",
             within(2, most::kTimesteps).not_empty());
    D2_FIELD(best_validation_loss, "Loss that a validation must go below to be the best one.");
    D2_FIELD(current_epoch, "Number of the first epoch.", within(0, most::kEpochs));
    D2_FIELD(num_samples_seen, "Samples that count as seen already.", within(0, most::kSamples));
    D2_FIELD(random_seed, "The reference's name of the root key `seed`.", at_least(0));
  }
};

struct PriorTrainConfig : OptimizerConfig<Single>,
                          LossConfig<Single>,
                          SharedTrainConfig,
                          PriorOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. (`ema_beta`: the reference's config says 0.99 and its runs "
      "have 0.9999, because the value is never handed on.)";
  static constexpr std::array kMovedKeys = {
      MovedKey{"stop_after_skipped", "/train/non_finite/after"}};

  PriorTrainConfig() {
    lr = 1.1e-4;
    wd = 6.02e-2;
    eps = 1e-6;
    ema_beta = 0.9999;
  }

  void fields(auto& f) {
    OptimizerConfig::fields(f);
    SharedTrainConfig::fields(f);
    LossConfig::fields(f);
    PriorOnlyTrainConfig::fields(f);
  }
};

}  // namespace dalle2
