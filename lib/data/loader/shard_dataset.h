// SPDX-License-Identifier: MIT
// The shards of a lane one after the other, and their samples in the order of an epoch, still packed: what
// the loader's threads draw from.
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
#include "config/shared/shard_data_config.h"
#include "data/embeddings/embeddings.h"
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
  bool draw_next_shard();
  void open(const ShardPlace& place);
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
  std::string shown_name_;   // for messages
  std::string last_loss_;    // why the last bad shard is one
  Timer since_told_;         // of a search for a usable sample
  DropLog member_warnings_;  // of the open shard, told with the next sample
  std::unique_ptr<SampleReader> reader_;
  std::optional<ShardPlace> sought_;  // where it was opened, until it gives a sample
  bool end_noted_ = false;            // of the open shard
};

/// A sample with everything in place but the picture decoded.
struct Candidate {
  std::string shard;    ///< its file name, for messages and for addressing the augmentation
  int64_t ordinal = 0;  ///< which draw of a shard it came from; 0 unless shards are resampled
  std::string key, caption;
  std::string file;     ///< of a picture that lies in a folder: its path; else empty
  std::string picture;  ///< JPEG, PNG or WebP
  EmbeddingRow image_embed, text_encoding, latent;  ///< rows is null if not needed
  ShardPlace place;                                 ///< in the shards
  int64_t draw = 0;                                 ///< that gives it its place in its window
  DropLog dropped_before;                           ///< since the candidate before it
  LanePosition behind;                              ///< where the epoch continues after it

  /// "shard 00012.tar, sample 000120042", or the file.
  std::string where() const;
};

/// Walks the shards one after the other and mixes the samples of each window: of every
/// `shuffle_buffer` usable ones that follow each other. While one window is handed out, the next is
/// read, a sample for a sample, so that as many as the buffer holds are in memory, packed. Not for
/// several threads at once.
class ShardDataset {
 public:
  /// Lists the embedding folders and checks that they fit the shards and the widths asked for.
  /// @throws ConfigError, DataError
  ShardDataset(const ShardDataConfig& config, const LoaderOptions& options);

  /// @param position where to continue: a Candidate::behind. What lies before it is not read again but
  /// for the begun window
  void start_epoch(int64_t epoch, LanePosition position = {});
  /// @return false at the end of the epoch; `candidate.dropped_before` then holds the last drops.
  /// Resampling ends only if it finds nothing at all
  /// @throws what ShardWalk::next() throws
  bool next(Candidate& candidate);
  /// Ends a next() that waits for the network, from any thread, by a NetworkError; until
  /// start_epoch().
  void cancel() { walk_.cancel(); }

 private:
  struct Window {
    std::optional<ShardPlace> start;  // none: not begun
    ShardPlace end;
    int64_t bad_shards = 0;          // before it
    std::vector<Candidate> samples;  // once it is complete, in the order of their draws
    DropLog drops;                   // while it was read
  };

  void begin_window();
  bool read_ahead();
  void read_begun_window(const LanePosition& begun);
  bool turn_window();
  int64_t draw_of(const ShardPlace& place) const;
  LanePosition position() const;
  bool take(GroupedSample& sample, Candidate& candidate, DropLog& drops);
  bool take_caption(const GroupedSample& sample, Candidate& candidate, DropLog& drops);

  const LoaderOptions options_;
  const CaptionReadConfig captions_;
  const int64_t index_width_;
  SampleEmbeddings image_, text_, latent_;
  ShardWalk walk_;

  // Of the epoch:
  int64_t epoch_ = 0;
  int64_t found_ = 0;  // usable samples of all shares
  size_t buffer_ = 1;  // samples of a whole window
  Window current_, coming_;
  size_t passed_ = 0;                  // samples of the current window
  std::optional<LanePosition> begun_;  // the window that an earlier run began, not read yet
  int64_t to_pass_ = 0;                // samples that an earlier run counted, not skipped yet
};

}  // namespace dalle2
