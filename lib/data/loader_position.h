// SPDX-License-Identifier: MIT
// Where the reading of an epoch stands: what was consumed, not what was read ahead.
#pragma once

#include <cstdint>
#include <vector>

namespace dalle2 {

/// A place between two samples of the shards, in the order in which an epoch reads them.
struct ShardPlace {
  int64_t shard = 0;    ///< shards of the epoch before it
  int64_t sample = 0;   ///< samples of the shard before it
  uint64_t offset = 0;  ///< the byte of the shard at which the next sample begins; 0: not known
  bool operator==(const ShardPlace&) const = default;
};

/// Where one lane stands. Samples are mixed within windows: a place of the shards, and how much of
/// the window that begins there was handed out.
struct LanePosition {
  ShardPlace window_start = {};
  int64_t window = 0;  ///< number of the window in the epoch
  int64_t passed = 0;  ///< samples of the window, or from its start on, that were handed out
  int64_t shuffle_buffer = 0;  ///< samples of a whole window; 0: as the config says
  int64_t shards = 0;          ///< of the lane when the position was taken; 0: any
  bool operator==(const LanePosition&) const = default;

  bool at_beginning() const { return window == 0 && passed == 0 && window_start == ShardPlace{}; }
};

/// Where all lanes of an epoch stand. The default is its beginning.
struct LoaderPosition {
  int64_t next_lane = 0;            ///< the first that has not had its turn in this round
  std::vector<LanePosition> lanes;  ///< empty at the beginning
  bool operator==(const LoaderPosition&) const = default;

  /// The first `samples` of the epoch passed, in one lane: for those who counted samples only.
  static LoaderPosition after_samples(int64_t samples) { return {0, {{.passed = samples}}}; }
};

}  // namespace dalle2
