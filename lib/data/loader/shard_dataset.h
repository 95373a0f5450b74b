// SPDX-License-Identifier: MIT
// The samples of a lane in the order of an epoch, still packed: what the loader's threads draw
// from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/embeddings/embeddings.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "data/loader/loader_position.h"
#include "data/shards/shard_walk.h"

namespace dalle2 {

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

  bool read(Candidate& candidate, DropLog& drops);
  bool is_of_share(const ShardPlace& place) const;
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
  int64_t epoch_ = -1;
  int64_t found_ = 0;  // usable samples of all shares
  size_t buffer_ = 1;  // samples of a whole window
  Window current_, coming_;
  size_t passed_ = 0;                  // samples of the current window
  std::optional<LanePosition> begun_;  // the window that an earlier run began, not read yet
  int64_t to_pass_ = 0;                // samples that an earlier run counted, not skipped yet
};

}  // namespace dalle2
