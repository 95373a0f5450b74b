// SPDX-License-Identifier: MIT
// All ranks of a job in one process, in step: what each of them reads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/batch.h"
#include "data/loader/loader.h"

namespace dalle2 {

/// The loaders of `world` ranks, a thread each while a step is taken.
class RankWalk {
 public:
  /// @param config its num_workers are shared among the ranks (one each at least), as they run on
  /// one machine here; the order does not depend on them
  /// @param options of any rank: `rank` and `share_sizes` are set here
  /// @throws ConfigError, DataError
  RankWalk(const ShardDataConfig& config, const LoaderOptions& options, int world);

  void start_epoch(int64_t epoch, const LoaderPosition& position = {});
  /// The batches of the next step, one a rank; none at the end of the epoch, which all ranks reach
  /// together.
  /// @throws what ShardLoader::next() throws, as soon as no rank reads any more
  std::optional<std::vector<Batch>> next();
  /// Where the epoch stands after the last step: each rank knows it of its own lanes only.
  const LoaderPosition& position() const { return position_; }
  /// Samples left out since construction.
  DropCounts dropped() const;

 private:
  std::vector<int64_t> meet(size_t rank, int64_t size);
  void leave();
  void take_positions(const std::vector<std::optional<Batch>>& batches);

  std::vector<std::unique_ptr<ShardLoader>> loaders_;
  LoaderPosition position_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  size_t waiting_ = 0;
  int64_t round_ = 0;
  std::vector<int64_t> sizes_, told_;  // of the ranks in this step
  bool left_ = false;                  // a rank failed: nobody waits for it
};

}  // namespace dalle2
