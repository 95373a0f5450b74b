// SPDX-License-Identifier: MIT
// `shards check`: the embeddings of one kind against the samples of a shard.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/embeddings/embeddings.h"
#include "data/shards/shard_check.h"
#include "io/formats/webdataset.h"

namespace dalle2 {

/// Where embeddings of one kind come from; none without a source.
struct EmbeddingSource {
  std::string kind;  ///< "image" or "text"
  std::optional<EmbeddingFolder> folder;
  bool in_tar = false;
  SourceOptions options = {};

  bool exists() const { return folder.has_value() || in_tar; }
};

/// @param url of the folder; without one they are in the tars, if `in_tar`
/// @param shard_width digits of `{}` in the url
/// @throws DataError for a folder that cannot be right, ConfigError, NetworkError
EmbeddingSource open_embedding_source(const std::string& kind,
                                      const std::optional<std::string>& url,
                                      bool in_tar,
                                      int64_t shard_width,
                                      const SourceOptions& options);

/// Rows seen, by shape: which one most have is known only at the end.
using ShapeCounts = std::map<std::vector<int64_t>, int64_t>;

/// Checks the rows of one shard. What it is given outlives it.
class EmbeddingChecker {
 public:
  EmbeddingChecker(const EmbeddingSource& source,
                   int64_t index_width,
                   ShardCheck& check,
                   EmbeddingCheck& result,
                   ShapeCounts& shapes);

  /// @return true if the sample has an embedding of this kind, or needs none
  bool check(const GroupedSample& sample);
  /// After the last sample: what the rows say about the way they were counted.
  void finish();

 private:
  bool find(const GroupedSample& sample, EmbeddingRow& row);
  std::string find_in_folder(const GroupedSample& sample, EmbeddingRow& row);
  std::string find_in_shard(const GroupedSample& sample, EmbeddingRow& row) const;

  const EmbeddingSource& source_;
  const int64_t index_width_;
  ShardCheck& check_;
  EmbeddingCheck& result_;
  ShapeCounts& shapes_;
  std::shared_ptr<const EmbeddingRows> rows_;
  std::vector<bool> taken_;  // rows of samples
};

}  // namespace dalle2
