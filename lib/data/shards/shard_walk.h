// SPDX-License-Identifier: MIT
// The shards of a split one after the other, and their samples as they lie in them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/timer.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/loader/loader_position.h"
#include "data/pictures/preprocess.h"
#include "data/shards/shards.h"

namespace dalle2 {

/// Transfers in a row that fail through all their attempts before the network counts as lost.
inline constexpr int64_t kMostUnreachable = 3;

/// Draws the order of the shards, opens them, and gives up those that cannot be read. Not for
/// several threads at once.
class ShardWalk {
 public:
  /// Asked before a shard is opened. Why it is to be skipped; empty to admit it.
  using Admit = std::function<std::string(
      const std::string& url, const SourceOptions& source, DropLog& drops)>;

  ShardWalk(const LoaderOptions& options, const ShardDataConfig& config, Admit admit);

  /// @param bad_shards of the epoch before the place
  void start_epoch(int64_t epoch, const ShardPlace& place, int64_t bad_shards);
  /// @return the next sample, none at the end of the epoch. Resampling ends only if it finds
  /// nothing usable at all
  /// @throws DataError (more than max_bad_fraction of the shards cannot be read), NetworkError
  /// (shard after shard is out of reach: what is lost is the network, not a shard)
  std::optional<GroupedSample> next(DropLog& drops);
  /// Behind the last sample.
  ShardPlace place() const;
  /// At the last sample.
  ShardPlace sample_place() const { return {shards_opened_ - 1, samples_of_shard_ - 1}; }
  /// Of the epoch so far.
  int64_t bad_shards() const { return bad_shards_; }
  /// The last sample's shard, and its file name.
  const std::string& url() const { return url_; }
  const std::string& shard_name() const { return shard_name_; }
  /// Which draw of a shard of the epoch that was, from 1.
  int64_t shards_opened() const { return shards_opened_; }
  /// Tells that the last sample can be used.
  void found_usable();
  /// Ends a next() that waits for the network, from any thread, by a NetworkError; until
  /// start_epoch().
  void cancel() { cancelled_ = true; }

 private:
  size_t draw_shard();
  bool open_next_shard(DropLog& drops);
  void open_at(const ShardPlace& place);
  void open(const ShardPlace& place);
  bool open_from_start();
  std::optional<GroupedSample> next_of_shard();
  void tell_of_search();
  SourceOptions source_options() const;
  void note_end(bool has_sample, DropLog& drops);
  void lose_shard(const char* reason, const std::string& text, DropLog& drops);
  void count_bad_shard(const std::string& text);
  void lose_unreachable(const NetworkError& error, DropLog& drops);

  const LoaderOptions& options_;
  const double max_bad_fraction_;
  const bool allow_pipe_;
  const std::string caption_encoding_;
  const Admit admit_;

  std::vector<uint32_t> order_;  // of the urls in this epoch; empty: as they come
  std::optional<SampleRandom> draws_;
  ShardPlace first_;  // where the epoch was resumed
  int64_t shards_opened_ = 0, opened_since_usable_ = 0;
  int64_t samples_of_shard_ = 0;
  uint64_t bytes_of_shard_ = 0;       // ShardPlace::bytes
  int64_t bad_shards_ = 0;            // of this epoch
  int64_t unreachable_in_a_row_ = 0;  // since the last sample
  std::atomic<bool> cancelled_ = false;
  std::string url_, shard_name_;
  std::string shown_name_;            // for messages
  std::optional<ShardPlace> sought_;  // the open shard was opened there, and gave nothing yet
  std::string last_loss_;             // why the last bad shard is one
  Timer since_told_;                  // of a search for a usable sample
  DropLog member_warnings_;           // of the open shard, told with the next sample
  std::unique_ptr<SampleReader> reader_;
  bool end_noted_ = false;  // of the open shard
};

}  // namespace dalle2
