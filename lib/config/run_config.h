// SPDX-License-Identifier: MIT
// A whole training file: reading, dumping, and the texts made from it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "config/data_config.h"
#include "config/evaluate_config.h"
#include "config/model_config.h"
#include "config/tracker_config.h"
#include "config/train_config.h"

namespace dalle2 {

struct TrainDecoderConfig {
  static constexpr const char* kDoc = "A file that trains a decoder.";

  DecoderConfig decoder;
  DecoderDataConfig data;
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

/// Options of reading a file.
struct ReadOptions {
  std::vector<std::string>
      overrides;                ///< `--set`: "/train/lr=3e-4", value parsed as JSON, else a string
  bool strict = false;          ///< warnings become errors
  bool check_available = true;  ///< refuse what the program cannot do yet
};

/// A file that was read: the config, its warnings, and what else belongs to it.
struct LoadedDecoderConfig {
  TrainDecoderConfig config;
  DecoderPlan plan;
  std::string raw_json;   ///< the file as it stands (after no override), for the echo at start-up
  std::string full_json;  ///< the effective config, defaults filled, as --dump-config prints it
  std::vector<std::string> warnings;
};

/// Reads a decoder config. Every fault is reported at once, each with JSON pointer, expectation and
/// find.
/// @throws ConfigError "FILE: N problems\n  /pointer: ..."
LoadedDecoderConfig load_decoder_config(const std::string& path, const ReadOptions& options);

/// The same from text; `origin` names it in messages.
LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options);

/// "decoder", "prior" or "vae" by the root key of the file. @throws ConfigError
std::string config_kind(const std::string& path);

/// JSON Schema 2020-12 of a kind. @throws ConfigError for a kind that is not available yet
std::string config_schema(const std::string& kind);

/// docs/config.md.
std::string config_docs();

}  // namespace dalle2
