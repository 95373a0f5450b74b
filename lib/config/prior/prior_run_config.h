// SPDX-License-Identifier: MIT
// A whole training file of a diffusion prior.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/kinds.h"
#include "config/prior/prior_config.h"
#include "config/prior/prior_train_config.h"
#include "config/reading/count_limits.h"
#include "config/reading/loaded_config.h"
#include "config/shared/save_target.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"

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
    D2_REQUIRED(batch_size, "Samples per step.", within(1, most::kBatch));
    D2_FIELD(num_data_points, "Rows that are used at most.", within(1, most::kSamples));
    D2_FIELD(eval_every_seconds, "Seconds between two validations.", within(0, most::kSeconds));
  }
};

struct TrainPriorConfig {
  static constexpr const char* kDoc = "A file that trains a diffusion prior.";
  static constexpr const char* kKind = "prior";
  static constexpr std::array kPlaceholders = {
      Placeholder{"epoch", PlaceholderType::integer},
      Placeholder{"samples_seen", PlaceholderType::integer},
      Placeholder{"best_validation_loss", PlaceholderType::real}};

  PriorConfig prior;
  PriorDataConfig data;
  PriorTrainConfig train;
  TrackerConfig tracker;
  int64_t seed = 0;  ///< after reading: the same as train.random_seed, whichever was given

  void fields(auto& f) {
    D2_REQUIRED(prior, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    D2_REQUIRED(tracker, "Logs and checkpoints.");
    D2_FIELD(seed,
             "Seed of everything random; `train.random_seed`, the reference's name, is the same.",
             at_least(0));
  }
};

using LoadedPriorConfig = Loaded<TrainPriorConfig, PriorPlan>;

/// Reads a prior config. Every fault is reported at once, each with JSON pointer, expectation and
/// find.
/// @throws ConfigError "FILE: N problems\n  /pointer: ..."
LoadedPriorConfig load_prior_config(const std::string& path, const ReadOptions& options);

/// The same from text; `origin` names it in messages.
LoadedPriorConfig parse_prior_config(const std::string& json,
                                     const std::string& origin,
                                     const ReadOptions& options);

/// Its row in config_kinds().
ConfigKind prior_kind();

}  // namespace dalle2
