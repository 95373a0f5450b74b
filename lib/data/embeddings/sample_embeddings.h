// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/embeddings/embeddings.h"
#include "data/loader/drop_log.h"
#include "data/loader/loader_options.h"
#include "io/formats/webdataset.h"

namespace dalle2 {

/// The field of that name, null without.
std::string* find_field(GroupedSample& sample, const std::string& name);

/// The image or the text embeddings of the samples, or their latents: where they come from, and those of the open
/// shard. What does not fit is reported to a DropLog and costs the sample or the shard.
class SampleEmbeddings {
 public:
  enum class Kind { kImage, kText, kLatent };

  /// What a kind is called: in messages, by the config, in the shards, and as reasons of a drop.
  struct Words {
    const char *name, *key, *field, *none, *zero, *width_key;
  };

  /// @param width that the model takes, none for any
  SampleEmbeddings(Kind kind, bool needed, std::optional<int64_t> width);

  /// Proves at the start what would else show as an empty epoch: that there are files, that they
  /// are for these shards, and that they have the model's width.
  /// @throws ConfigError, DataError
  void open(const ShardDataConfig& config, const LoaderOptions& options);
  /// The embeddings of the next shard. @return why there are none for it; empty if there are
  /// @throws NetworkError
  std::string open_shard(const std::string& url, const SourceOptions& source, DropLog& drops);
  /// The row of a sample of the open shard. @return false if it has none, or one of another shape
  bool take(GroupedSample& sample,
            int64_t index_width,
            const std::string& where,
            EmbeddingRow& row,
            DropLog& drops);

 private:
  bool take_from_folder(const std::string& key,
                        int64_t index_width,
                        const std::string& where,
                        EmbeddingRow& row,
                        DropLog& drops) const;
  bool take_from_sample(GroupedSample& sample,
                        const std::string& where,
                        EmbeddingRow& row,
                        DropLog& drops);
  void check_coverage(const LoaderOptions& options) const;
  std::string check_shape(const std::vector<int64_t>& shape,
                          const std::string& where,
                          DropLog& drops);

  const Kind kind_;
  const bool needed_;
  const std::optional<int64_t> width_;
  const Words& words_;
  std::optional<EmbeddingFolder> folder_;  // none: inside the shards
  std::shared_ptr<const EmbeddingRows> rows_;
  std::vector<int64_t> row_shape_;  // empty until the first was seen
};

}  // namespace dalle2
