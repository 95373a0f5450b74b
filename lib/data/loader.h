// SPDX-License-Identifier: MIT
// Shards to batches, by worker threads, each sample once an epoch whatever their number.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "config/data_config.h"
#include "data/batch.h"
#include "data/drop_log.h"
#include "data/loader_options.h"
#include "data/shards.h"

namespace dalle2 {

/// Passes over the shards of a split. The threads (data.num_workers; 0: the caller's) decode at
/// most two batches each ahead; what is delivered, and in which order, does not depend on them.
///
///   DecoderLoader loader(config.data, options);
///   loader.start_epoch(epoch);
///   while (auto batch = loader.next()) trainer.step(*batch);
class DecoderLoader {
 public:
  /// Checks what can be checked before reading: urls, preprocessing, embedding folders and widths.
  /// @throws ConfigError, DataError
  DecoderLoader(const DecoderDataConfig& config, LoaderOptions options);
  ~DecoderLoader();
  DecoderLoader(const DecoderLoader&) = delete;
  DecoderLoader& operator=(const DecoderLoader&) = delete;

  /// Begins an epoch: its number addresses the shuffling and the augmentation.
  /// @param skip_samples samples of the epoch already passed (Batch::position, or the count of
  /// samples consumed if no picture was broken); they are passed over undecoded
  void start_epoch(int64_t epoch, int64_t skip_samples = 0);
  /// The next batch in order, or none at the end. The last short batch is kept.
  /// @throws DataError if the epoch has not one usable sample, or pictures of a batch differ in
  /// size
  std::optional<Batch> next();
  /// Samples left out since construction, as far as batches were handed out.
  const DropCounts& dropped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
