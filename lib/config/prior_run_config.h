// SPDX-License-Identifier: MIT
// A whole training file of a diffusion prior (config.md, section 9).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/data_config.h"
#include "config/prior_config.h"
#include "config/prior_train_config.h"
#include "config/run_config.h"
#include "config/tracker_config.h"

namespace dalle2 {

struct PriorDataConfig {
  static constexpr const char* kDoc =
      "Where the samples come from: folders of .npy files, on this machine, with one embedding a "
      "row. The files of a folder, also those in folders below it, are put behind each other in "
      "the order of their paths; row for row they belong to the same samples.";

  std::string image_url;  // required
  std::optional<std::string> text_url;
  std::optional<std::string> text_encodings_url;
  std::optional<std::string> meta_url;
  SplitConfig splits;      // required
  int64_t batch_size = 0;  // required
  int64_t num_data_points = 250000000;
  int64_t eval_every_seconds = 3600;

  void fields(auto& f) {
    D2_REQUIRED(image_url, "Folder of the image embeddings, [n, image_embed_dim].", not_empty());
    D2_FIELD(text_url, "Folder of the text embeddings, [n, image_embed_dim].", not_empty());
    D2_FIELD(text_encodings_url,
             "Folder of the encodings of the texts' tokens, [n, length, image_embed_dim], zero "
             "behind a text's end. With `prior.condition_on_text_encodings`.",
             not_empty());
    D2_FIELD(meta_url,
             "No effect: captions would need a CLIP model, which is not available yet.",
             not_empty());
    D2_REQUIRED(splits,
                "How the rows are divided, in their order: the first `train` share, then `val`, "
                "then the rest.");
    D2_REQUIRED(batch_size, "Samples per step.", at_least(1));
    D2_FIELD(num_data_points, "Rows that are used at most.", at_least(1));
    D2_FIELD(eval_every_seconds, "Seconds between two validations.", at_least(0));
  }
};

/// `train` of a prior: the step's options and the loop's.
struct PriorLoopConfig : PriorTrainConfig {
  int64_t epochs = 1;
  int64_t save_every_seconds = 3600;
  std::vector<int64_t> eval_timesteps = {64};
  double best_validation_loss = 1e9;
  int64_t current_epoch = 0;
  int64_t num_samples_seen = 0;
  int64_t random_seed = 0;
  std::string device = "cuda:0";
  bool deterministic = false;
  int64_t stop_after_skipped = 20;

  void fields(auto& f) {
    D2_FIELD(epochs, "Passes over the training rows.", at_least(1));
    D2_FIELD(save_every_seconds, "Seconds between two saves.", at_least(0));
    D2_FIELD(eval_timesteps,
             "With how many steps samples are drawn for the similarities of a validation; each "
             "from `prior.sample_timesteps` to `prior.timesteps`.",
             at_least(2).not_empty());
    D2_FIELD(best_validation_loss, "Loss that a validation must go below to be the best one.");
    D2_FIELD(current_epoch, "Number of the first epoch.", at_least(0));
    D2_FIELD(num_samples_seen, "Samples that count as seen already.", at_least(0));
    D2_FIELD(random_seed, "Seed of everything random.", at_least(0));
    D2_FIELD(device, "Device to train on, e.g. `cpu` or `cuda:0`.", not_empty());
    D2_FIELD(deterministic, "Only algorithms that give the same bits each time.");
    D2_FIELD(stop_after_skipped,
             "Updates in a row, skipped for a loss or gradient that is not finite, after which the "
             "run stops with exit code 4.",
             at_least(1));
    PriorTrainConfig::fields(f);
  }
};

struct TrainPriorConfig {
  static constexpr const char* kDoc = "A file that trains a diffusion prior.";

  PriorConfig prior;
  PriorDataConfig data;
  PriorLoopConfig train;
  TrackerConfig tracker;

  void fields(auto& f) {
    D2_REQUIRED(prior, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    D2_REQUIRED(tracker, "Logs and checkpoints.");
  }
};

/// A file that was read: the config, its warnings, and what else belongs to it.
struct LoadedPriorConfig {
  TrainPriorConfig config;
  PriorPlan plan;
  std::string raw_json;   ///< the file as it stands (after no override), for the echo at start-up
  std::string full_json;  ///< the effective config, defaults filled, as --dump-config prints it
  std::vector<std::string> warnings;
};

/// True if the root of the file names a prior and no decoder. @throws ConfigError as reading does
bool is_prior_config(const std::string& path);

/// Reads a prior config. Every fault is reported at once, each with JSON pointer, expectation and
/// find.
/// @throws ConfigError "FILE: N problems\n  /pointer: ..."
LoadedPriorConfig load_prior_config(const std::string& path, const ReadOptions& options);

/// The same from text; `origin` names it in messages.
LoadedPriorConfig parse_prior_config(const std::string& json,
                                     const std::string& origin,
                                     const ReadOptions& options);

}  // namespace dalle2
