// SPDX-License-Identifier: MIT
// From shards to batches. Each sample comes once per epoch, for any number of threads and ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/loader/loader_position.h"

namespace dalle2 {

class LaneLoader;

/// Appends `{"rank":..,"split":..,"epoch":..,"keys":[..]}` to DALLE2_TRACE_SAMPLES.rankR, if the
/// variable is set. @throws DataError if it cannot be written
void trace_samples(int rank, const std::string& split, int64_t epoch, const Batch& batch);

/// Passes over the shards of a split.
///
/// An epoch has as many lanes as there are ranks when it begins, or as the options say. Each lane
/// is a contiguous part of the shards. The lanes take turns, one batch each, and that is the order
/// of the samples over all ranks. Rank r of W serves the lanes r, r + W, ... If another number of
/// ranks resumes the epoch, it keeps its lanes, and so this order.
///
/// All ranks take the same number of steps. A rank whose lanes are finished gets batches without
/// samples until all are. So no sample is left out, and none comes twice.
///
///   ShardLoader loader(config.data, options);
///   loader.start_epoch(epoch);
///   while (auto batch = loader.next()) trainer.step(*batch);
class ShardLoader {
 public:
  /// Checks what can be checked before reading: urls, preprocessing, embedding folders and widths.
  /// @throws ConfigError, DataError
  ShardLoader(const ShardDataConfig& config, LoaderOptions options);
  ~ShardLoader();

  /// Begins an epoch. Its number addresses the shuffling and the augmentation. @param position
  /// where another run, with any number of ranks, stopped in it. What comes before it is neither
  /// read nor decoded. It must belong to the same shards, see other_shards()
  void start_epoch(int64_t epoch, const LoaderPosition& position = {});
  /// The next batch in order, or none at the end. The last short batch of a lane is kept.
  /// @throws DataError if the epoch has not one usable sample, or pictures of a batch differ in
  /// size, NetworkError, on the rank that finds it; StoppedError on the others then, and on all if a
  /// signal ended the wait of one
  std::optional<Batch> next();
  /// Reports that a batch, possibly an empty one, was used. Only then the sample trace
  /// (DALLE2_TRACE_SAMPLES) contains it. A batch that was given up, and comes again when the epoch
  /// is resumed, is in the trace once. @throws DataError if the trace cannot be written
  void consumed(const Batch& batch) const;
  /// Samples left out since construction, up to the last batch that was handed out.
  const DropCounts& dropped() const { return dropped_; }

 private:
  void make_lanes(int64_t count);
  std::vector<int64_t> sizes_of_step(int64_t own, const std::exception_ptr& fault) const;
  void finish() const;

  const ShardDataConfig config_;
  const LoaderOptions options_;
  DropCounts dropped_, epoch_dropped_;
  std::vector<std::unique_ptr<LaneLoader>> lanes_;  // null: of another rank, or without shards
  LoaderPosition position_;
  std::vector<bool> over_;  // lanes of this rank that are out
  bool started_ = false, from_beginning_ = true;
  bool had_empty_step_ = false;  // in this epoch
  int64_t epoch_ = 0;
};

}  // namespace dalle2
