// SPDX-License-Identifier: MIT
// A whole training file of a decoder.
#pragma once

#include <array>
#include <string>

#include "config/decoder/decoder_config.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/decoder/decoder_train_config.h"
#include "config/kinds.h"
#include "config/reading/loaded_config.h"
#include "config/shared/save_target.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"

namespace dalle2 {

struct TrainDecoderConfig {
  static constexpr const char* kDoc = "A file that trains a decoder.";
  static constexpr const char* kKind = "decoder";
  static constexpr std::array kPlaceholders = {
      Placeholder{"epoch", PlaceholderType::integer},
      Placeholder{"sample", PlaceholderType::integer},
      Placeholder{"next_task", PlaceholderType::text},
      Placeholder{"validation_losses", PlaceholderType::list},
      Placeholder{"samples_seen", PlaceholderType::integer}};

  DecoderConfig decoder;
  ShardDataConfig data;
  DecoderTrainConfig train;
  DecoderEvaluateConfig evaluate;
  TrackerConfig tracker;
  int64_t seed = 0;

  void fields(auto& f) {
    D2_REQUIRED(decoder, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    D2_REQUIRED(evaluate, "The metrics; `{}` for the defaults.");
    D2_REQUIRED(tracker, "Logs and checkpoints.");
    D2_FIELD(seed,
             "Seed of everything random: weights, noise, order and split of the shards.",
             at_least(0));
  }
};

using LoadedDecoderConfig = Loaded<TrainDecoderConfig, DecoderPlan>;

/// Reads a decoder config. Every fault is reported at once, each with JSON pointer, expectation and
/// find.
/// @throws ConfigError "FILE: N problems\n  /pointer: ..."
LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options);

/// The same from text; `origin` names it in messages.
LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options);

/// Its row in config_kinds().
ConfigKind decoder_kind();

}  // namespace dalle2
