// SPDX-License-Identifier: MIT
// All ranks of a job in one process, in step: what each of them reads.
#pragma once

#include <barrier>
#include <cstdint>
#include <memory>
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
  std::vector<std::unique_ptr<ShardLoader>> loaders_;
  LoaderPosition position_;
  std::optional<std::barrier<>> step_;  // all ranks of a step meet here
  std::vector<int64_t> sizes_;          // of the ranks in this step
};

}  // namespace dalle2
