// SPDX-License-Identifier: MIT
// The samples of a split in the order of an epoch, still packed: what the loader's threads draw
// from.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/data_config.h"
#include "data/drop_log.h"
#include "data/embeddings.h"
#include "data/loader_options.h"
#include "data/preprocess.h"
#include "data/shard_reader.h"

namespace dalle2 {

/// A sample with everything in place but the picture decoded.
struct Candidate {
  std::string shard;    ///< its file name, for messages and for addressing the augmentation
  int64_t ordinal = 0;  ///< which draw of a shard it came from; 0 unless shards are resampled
  std::string key, caption;
  std::string picture;                      ///< JPEG, PNG or WebP
  EmbeddingRow image_embed, text_encoding;  ///< rows is null if not needed
  DropLog dropped_before;                   ///< since the candidate before it

  /// "shard 00012.tar, sample 000120042".
  std::string where() const;
};

/// Walks the shards one after the other. Not for several threads at once.
class DecoderDataset {
 public:
  /// Lists the embedding folders and checks that they fit the shards and the widths asked for.
  /// @throws ConfigError, DataError
  DecoderDataset(const DecoderDataConfig& config, const LoaderOptions& options);

  void start_epoch(int64_t epoch);
  /// @return false at the end of the epoch; `candidate.dropped_before` then holds the last drops.
  /// Resampling ends only if it finds nothing at all
  /// @throws DataError (more than max_bad_fraction of the shards cannot be read), NetworkError
  /// (shard after shard is out of reach: what is lost is the network, not a shard)
  bool next(Candidate& candidate);
  /// Ends a next() that waits for the network, from any thread, by a NetworkError; until
  /// start_epoch().
  void cancel() { cancelled_ = true; }

 private:
  /// Image or text embeddings: where they come from, and those of the open shard.
  struct Embeddings {
    std::string kind;        // "image", "text"
    std::string field;       // in the shards
    std::string none, zero;  // reasons
    bool needed = false;
    std::optional<EmbeddingFolder> folder;  // none: inside the shards
    std::shared_ptr<const EmbeddingRows> rows;
    std::vector<int64_t> row_shape;  // empty until the first was seen
    std::optional<int64_t> width;    // that the model takes

    Embeddings(std::string kind_, std::string field_, std::string none_, std::string zero_);
    void open(const std::optional<std::string>& url, bool in_tar, const LoaderOptions& options);
    bool take(GroupedSample& sample,
              int64_t index_width,
              const std::string& where,
              EmbeddingRow& row,
              DropLog& drops);
    bool check_shape(const std::vector<int64_t>& shape, const std::string& where, DropLog& drops);
  };

  bool open_next_shard(DropLog& drops);
  HttpOptions http_options() const;
  void lose_shard(const char* reason, const std::string& text, DropLog& drops);
  void lose_unreachable(const NetworkError& error, DropLog& drops);
  bool open_embeddings(Embeddings& embeddings, const std::string& url, DropLog& drops);
  bool take(GroupedSample& sample, Candidate& candidate, DropLog& drops);
  bool take_caption(GroupedSample& sample, Candidate& candidate, DropLog& drops);

  LoaderOptions options_;
  int64_t index_width_;
  double max_bad_fraction_;
  Embeddings image_{"image", "img_emb.npy", drop::kNoImageEmbedding, drop::kZeroImageEmbedding};
  Embeddings text_{"text", "text_emb.npy", drop::kNoTextEmbedding, drop::kZeroTextEmbedding};

  std::vector<size_t> order_;  // of the urls in this epoch
  std::optional<SampleRandom> draws_of_shards_;
  int64_t shards_opened_ = 0, opened_since_candidate_ = 0;
  int64_t bad_shards_ = 0;            // of this epoch
  int64_t unreachable_in_a_row_ = 0;  // since the last sample
  std::atomic<bool> cancelled_ = false;
  std::string shard_name_;
  DropLog member_warnings_;  // of the open shard, told with the next sample
  std::unique_ptr<SampleReader> reader_;
  bool warned_of_caption_ = false;
};

}  // namespace dalle2
