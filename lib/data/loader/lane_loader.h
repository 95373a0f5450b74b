// SPDX-License-Identifier: MIT
// The shards of one lane to batches, by worker threads.
#pragma once

#include <memory>
#include <optional>

#include "config/shared/shard_data_config.h"
#include "data/loader/batch.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/loader/loader_position.h"

namespace dalle2 {

/// Passes over the shards of a lane. The threads (data.num_workers; 0: the caller's) decode at most
/// two batches each ahead; what is delivered, and in which order, does not depend on them.
class LaneLoader {
 public:
  /// Checks what can be checked before reading: urls, preprocessing, embedding folders and widths.
  /// @throws ConfigError, DataError
  LaneLoader(const ShardDataConfig& config, LoaderOptions options);
  ~LaneLoader();
  LaneLoader(const LaneLoader&) = delete;
  LaneLoader& operator=(const LaneLoader&) = delete;

  /// Begins an epoch: its number addresses the shuffling and the augmentation. @param position
  /// where another run stopped in it: what lies before is not decoded
  void start_epoch(int64_t epoch, const LanePosition& position);
  /// The next batch in order, or none at the end. The last short batch is kept. Its position has
  /// this lane alone.
  /// @throws DataError if pictures of a batch differ in size
  std::optional<Batch> next();
  /// Samples of the epoch that got into a batch since start_epoch().
  int64_t placed() const;
  /// Left out since construction, and since start_epoch(), as far as batches were handed out.
  const DropCounts& dropped() const;
  const DropCounts& dropped_in_epoch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
