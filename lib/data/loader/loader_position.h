// SPDX-License-Identifier: MIT
// Where the reading of an epoch stands, for every kind of data: what was consumed, not what was read
// ahead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// A place between two samples of the shards, in the order in which an epoch reads them.
struct ShardPlace {
  int64_t shard = 0;    ///< shards of the epoch before it
  int64_t sample = 0;   ///< samples of the shard before it
  uint64_t offset = 0;  ///< the byte of the shard at which the next sample begins; 0: not known
  uint64_t bytes = 0;   ///< of the shard, which tells whether it is still the same; 0: not known
  bool operator==(const ShardPlace&) const = default;
  bool is_before(const ShardPlace& other) const {
    return shard != other.shard ? shard < other.shard : sample < other.sample;
  }
};

/// Where one lane stands. Samples are mixed within windows, stretches of the shards: each has a
/// draw, which only its place in the shards decides, and they are handed out in the order of the
/// draws. A sample that cannot be read any more when the epoch is resumed takes no other with it.
struct LanePosition {
  ShardPlace window_start = {};
  ShardPlace window_end = {};  ///< where the next window starts, if this one was begun
  int64_t window_samples = 0;  ///< usable ones in it, if it was begun
  int64_t passed = 0;          ///< of them handed out; of the epoch if window_samples is 0
  int64_t last_draw = 0;       ///< of the last one handed out
  int64_t shuffle_buffer = 0;  ///< samples of a whole window; 0: as the config says
  int64_t bad_shards = 0;      ///< of the epoch, up to the window
  bool operator==(const LanePosition&) const = default;
};

/// Where an epoch stands. The default is its beginning. Rows of embeddings and pictures of a folder
/// have no lanes: their row is the place in the order.
struct LoaderPosition {
  int64_t row =
      0;  ///< passed, over all ranks: samples of shards; rows and pictures, unusable ones too
  int64_t block_rows = 0;                ///< of the order of rows, PriorDataset::block_rows()
  int64_t next_lane = 0;                 ///< the first that has not had its turn in this round
  std::vector<LanePosition> lanes = {};  ///< empty at the beginning
  std::string shard_names = "";          ///< shard_names_hash() of the epoch's shards; "": any
  bool operator==(const LoaderPosition&) const = default;

  /// The first `samples` of the epoch passed, in one lane: for those who counted samples only.
  static LoaderPosition after_samples(int64_t samples) {
    return {.row = samples, .lanes = {{.passed = samples}}};
  }
};

/// The position of an epoch from those of all ranks, each of which knows its own lanes only: lane l
/// is that of rank l modulo their number.
inline LoaderPosition join_positions(const std::vector<LoaderPosition>& of_ranks) {
  LoaderPosition joined = of_ranks.front();
  for (size_t lane = 0; lane < joined.lanes.size(); ++lane) {
    joined.lanes[lane] = of_ranks[lane % of_ranks.size()].lanes[lane];
  }
  return joined;
}

}  // namespace dalle2
