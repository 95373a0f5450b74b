// SPDX-License-Identifier: MIT
// A whole training file of a diffusion prior.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/kinds.h"
#include "config/prior/prior_config.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"

namespace dalle2 {

struct PriorDataConfig : PictureReadConfig, CaptionReadConfig {
  static constexpr const char* kDoc =
      "Where the samples come from: folders of `.npy` files with one embedding per row, and "
      "captions. A folder of embeddings is on this machine, in S3 (`s3://BUCKET/FOLDER`) or in the "
      "Hugging Face hub (`hf://OWNER/NAME/FOLDER` or `hf://datasets/OWNER/NAME/FOLDER`, with "
      "`@REVISION` after `NAME` for a revision other than `main`), or the URL of a web page links "
      "to its files. Files are joined in the order of their paths, with subfolders only on this "
      "machine. Row n of each folder belongs to sample n.";

  std::optional<std::string> image_url;
  std::optional<std::string> text_url;
  std::optional<std::string> text_encodings_url;
  std::optional<std::string> meta_url;
  std::string caption_key = "caption";
  SplitConfig splits;      // required
  int64_t batch_size = 0;  // required
  bool shuffle_rows = false;
  int64_t num_data_points = 250000000;
  int64_t eval_every_seconds = 3600;

  void fields(auto& f) {
    D2_FIELD(
        image_url,
        "Folder of the image embeddings, [n, image_embed_dim]. May be absent with `prior.clip` and "
        "shards in `data.meta_url`, whose pictures the CLIP then embeds.",
        not_empty());
    D2_FIELD(text_url, "Folder of the text embeddings, [n, image_embed_dim].", not_empty());
    D2_FIELD(
        text_encodings_url,
        "Folder of the encodings of the texts' tokens, [n, length, image_embed_dim], zero after a "
        "text's end. Needed with `prior.condition_on_text_encodings` and no `prior.clip`.",
        not_empty());
    D2_FIELD(
        meta_url,
        "Captions of the rows for `prior.clip`: a file or folder on this machine. `.txt` has a "
        "caption per line; `.jsonl` an object with the key `caption` per line; `.parquet` a column "
        "`caption` (needs `scripts/build.sh --parquet`); an uncompressed `.tar` samples with a "
        "field `txt`.",
        not_empty());
    D2_FIELD(caption_key, "Name of the key or column, if not `caption`.", not_empty());
    D2_REQUIRED(splits,
                "Fractions of the rows in their stored order: `train`, `val`, then the rest.");
    D2_REQUIRED(batch_size, "Samples per step and process.", within(1, most::kBatch));
    D2_FIELD(
        shuffle_rows,
        "Shuffle the training rows in each epoch, by seed, epoch and number of rows. Remote rows "
        "are fetched in blocks of 4 MiB, and shuffled within 16 blocks at a time.");
    D2_FIELD(num_data_points, "Largest number of rows to use.", within(1, most::kSamples));
    D2_FIELD(eval_every_seconds, "Seconds between two validations.", within(0, most::kSeconds));
    PictureReadConfig::fields(f);
    CaptionReadConfig::fields(f);
  }
};

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
             "Numbers of sampling steps for the similarities of a validation.",
             within(2, most::kTimesteps).not_empty());
    D2_FIELD(best_validation_loss,
             "Only a validation with a loss below this value can be the best.");
    D2_FIELD(current_epoch, "Number of the first epoch.", within(0, most::kEpochs));
    D2_FIELD(
        num_samples_seen, "Samples that count as seen at the start.", within(0, most::kSamples));
    D2_FIELD(random_seed, "The reference's name for the root key `seed`.", at_least(0));
  }
};

struct PriorTrainConfig : OptimizerConfig<Single>,
                          LossConfig<Single>,
                          SharedTrainConfig,
                          PassGraphConfig,
                          PriorOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. (The `ema_beta` of 0.99 in the reference's config has no "
      "effect; its runs use 0.9999, the default here.)";

  PriorTrainConfig() {
    lr = 1.1e-4;
    wd = 6.02e-2;
    eps = 1e-6;
    ema_beta = 0.9999;
  }

  void fields(auto& f) {
    OptimizerConfig::fields(f);
    SharedTrainConfig::fields(f);
    PassGraphConfig::fields(f);
    LossConfig::fields(f);
    PriorOnlyTrainConfig::fields(f);
  }
};

struct TrainPriorConfig : RootConfig {
  static constexpr const char* kDoc = "A file that trains a diffusion prior.";
  static constexpr const char* kKind = "prior";
  static FormatFields placeholders() {
    return {{"epoch", int64_t{0}}, {"samples_seen", int64_t{0}}, {"best_validation_loss", 0.0}};
  }

  PriorConfig prior;
  PriorDataConfig data;
  std::optional<std::string> written_by;
  PriorTrainConfig train;  ///< after reading its random_seed is `seed`, whichever was given

  void fields(auto& f) {
    D2_REQUIRED(prior, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    D2_FIELD(written_by, kWrittenByDoc);
    RootConfig::fields(f, "Seed of everything random, like `train.random_seed`.");
  }
};

using LoadedPriorConfig = Loaded<TrainPriorConfig, PriorPlan>;

LoadedPriorConfig parse_prior_config(const std::string& json,
                                     const std::string& origin,
                                     const ReadOptions& options);

}  // namespace dalle2
