// SPDX-License-Identifier: MIT
// Counts the samples and shards that were left out of the data, by reason, with examples.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dalle2 {

/// Why samples (or whole shards) were left out, and how many: "broken picture" -> 3.
using DropCounts = std::map<std::string, int64_t>;

namespace drop {
inline constexpr const char* kAbsentShard = "absent shard";
inline constexpr const char* kDamagedShard = "damaged shard";
inline constexpr const char* kUnreachableShard = "unreachable shard";
inline constexpr const char* kEmptyShard = "shard without samples";
inline constexpr const char* kShardWithoutEmbeddings = "shard without embeddings";
inline constexpr const char* kNoPicture = "no picture";
inline constexpr const char* kBrokenPicture = "broken picture";
inline constexpr const char* kNoCaption = "no caption";
inline constexpr const char* kNoImageEmbedding = "no image embedding";
inline constexpr const char* kNoTextEmbedding = "no text embedding";
inline constexpr const char* kZeroImageEmbedding = "zero image embedding";
inline constexpr const char* kZeroTextEmbedding = "zero text embedding";
inline constexpr const char* kNoLatent = "no latent";
inline constexpr const char* kZeroLatent = "zero latent";
inline constexpr const char* kEmbeddingNotFinite = "embedding with NaN or infinity";
inline constexpr const char* kWrongEmbeddingShape = "embedding of another shape";
inline constexpr const char* kRepeatedMember = "repeated key or field";
/// Of a shard whose samples are used anyway: it may have been cut between two members.
inline constexpr const char* kShardWithoutEnd = "shard without end marker";
// Used anyway, too:
inline constexpr const char* kUnreadData = "shard with data that is not read";
inline constexpr const char* kBadCaption = "caption without text";
inline constexpr const char* kUnreadCaption = "unreadable caption";
inline constexpr const char* kAssumedEncoding = "caption of an assumed encoding";
inline constexpr const char* kSeveralLines = "caption of several lines";
/// Of a sample that is used anyway, with one of them.
inline constexpr const char* kSeveralPictures = "several pictures";
// Found by `shards check` alone:
inline constexpr const char* kRepeatedKey = "key of an earlier sample";
inline constexpr const char* kForeignKey = "key with another shard's number";
inline constexpr const char* kSharedRow = "row of embeddings that two samples have";
inline constexpr const char* kIdleRow = "row of embeddings without a sample";
}  // namespace drop

/// Drops travel with the next batch, and are counted and reported when that batch is handed out.
/// The counts therefore do not depend on how far the threads have read ahead.
class DropLog {
 public:
  /// @param text names the sample or shard and what is wrong with it
  void add(const std::string& reason, std::string text);
  void merge(DropLog&& later);
  bool empty() const { return counts_.empty(); }
  const DropCounts& counts() const { return counts_; }
  /// What was added first for each reason, and how much more there is: lines to show.
  std::vector<std::string> examples() const;
  int64_t count(const std::string& reason) const {
    const auto found = counts_.find(reason);
    return found != counts_.end() ? found->second : 0;
  }
  /// What was added first for a reason, empty for none.
  std::string first(const std::string& reason) const {
    const auto found = texts_.find(reason);
    return found != texts_.end() ? found->second.front() : "";
  }
  /// Of those that were left out, not of those that were used all the same.
  int64_t total() const;

  /// Adds to `total` and `epoch`. Warns about new drops by the total: about each of the first
  /// three of a reason, then at 10, 100, 1000, ...
  void report(const std::string& split, DropCounts& total, DropCounts& epoch) const;
  /// For a caller that reports once. @return describe_drops() of it
  std::string report_all(const std::string& split) const;

 private:
  DropCounts counts_;
  std::map<std::string, std::vector<std::string>> texts_;  // the first of each reason
};

/// "left out: 3 broken pictures, 1 sample without picture; used all the same: 1 shard without end
/// marker", "nothing was found" if empty.
std::string describe_drops(const DropCounts& counts);

}  // namespace dalle2
