// SPDX-License-Identifier: MIT
// Shards to batches, by worker threads, each sample once an epoch whatever their number.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/data_config.h"
#include "data/batch.h"

namespace dalle2 {

/// Rank and world of this process.
struct RankInfo {
  int rank = 0, world = 1;
};

/// Shard numbers of the three splits of one rank (data.md 1.1).
struct ShardSplit {
  std::vector<int64_t> train, val, test;
};
/// @throws ConfigError "Not enough shards", or naming an empty split and the shards there are
ShardSplit split_shards(const DecoderDataConfig& config, int64_t seed, RankInfo rank);

/// `base` with {} (or {:05d}) replaced by the zero-padded shard number.
std::string shard_url(const std::string& base, int64_t shard, int64_t shard_width);

/// What a loader reads and how.
struct LoaderOptions {
  std::string split = "train";      ///< named in messages and in the sample trace
  std::vector<std::string> urls;
  int64_t batch_size = 64;
  bool shuffle = false;             ///< shards in an order drawn from (seed, epoch)
  bool resample = false;            ///< endless draws with replacement
  bool need_captions = false;       ///< true: a missing caption drops the sample; false: it is ""
  bool need_image_embeds = false;
  bool need_text_encodings = false;
  int64_t seed = 0;
  RankInfo rank;
};

/// Why samples were left out, and how many: "broken picture" -> 3.
using DropCounts = std::map<std::string, int64_t>;

/// One pass over the shards of a split.
class DecoderLoader {
 public:
  DecoderLoader(const DecoderDataConfig& config, LoaderOptions options);
  ~DecoderLoader();
  DecoderLoader(const DecoderLoader&) = delete;
  DecoderLoader& operator=(const DecoderLoader&) = delete;

  /// Begins an epoch: its number addresses the shuffling and the augmentation.
  /// @param skip_samples samples of the epoch already consumed; they are passed over undecoded
  void start_epoch(int64_t epoch, int64_t skip_samples = 0);
  /// The next batch in order, or none at the end. The last short batch is kept.
  std::optional<Batch> next();
  /// Samples left out since construction.
  const DropCounts& dropped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
