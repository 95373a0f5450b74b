// SPDX-License-Identifier: MIT
// The shards of one lane to batches, by worker threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/batch.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/loader/shard_dataset.h"
#include "data/pictures/preprocess.h"

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
  const DropCounts& dropped() const { return dropped_; }
  const DropCounts& dropped_in_epoch() const { return epoch_dropped_; }

 private:
  struct OpenBatch;
  struct Placement;
  /// A candidate on its way from the dataset to its batch.
  struct Item {
    int64_t number = 0;  // since the start, in the order of the epoch
    bool last = false;   // the end of the epoch, no sample
    Candidate candidate;
    Image picture;             // 8-bit, all transforms but ToTensor applied
    std::string fault;         // why the picture cannot be used
    std::exception_ptr error;  // what ends the epoch
  };

  void stop();
  bool work_once();
  bool reserve();
  bool fetch(Item& item);
  void prepare(Item& item) const;
  void give_place(Item&& item);
  bool is_hopeless(const Item& item);
  void assign(Item&& item, std::vector<Placement>& placements);
  bool front_is_ready() const;
  bool is_settled() const;
  void report(const DropLog& drops);

  const LoaderOptions options_;
  const int64_t workers_;
  const Preprocess preprocess_;
  const std::shared_ptr<DropCounts> told_;
  const int64_t window_;
  int64_t epoch_ = 0;
  LanePosition first_;  // where the epoch was resumed
  bool started_ = false;
  DropCounts dropped_;        // of the caller's thread
  DropCounts epoch_dropped_;  // the same, of this epoch
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_ = false;

  std::mutex source_mutex_;  // guards the next three
  ShardDataset dataset_;
  int64_t next_number_ = 0;
  bool source_done_ = false;

  mutable std::mutex mutex_;         // guards all below
  std::condition_variable room_;     // in the window, for threads
  std::condition_variable ready_;    // a batch, or the end, for the caller
  std::map<int64_t, Item> decoded_;  // waiting for those before them
  int64_t next_to_assign_ = 0;
  int64_t in_flight_ = 0;   // candidates without a place yet
  int64_t placed_ = 0;      // samples of the epoch that got one
  int64_t broken_ = 0;      // pictures before the first of them
  int64_t unconsumed_ = 0;  // of them, not handed out yet
  DropLog carry_;           // drops since the last closed batch
  std::deque<std::shared_ptr<OpenBatch>> batches_;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace dalle2
