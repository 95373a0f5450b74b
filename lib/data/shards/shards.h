// SPDX-License-Identifier: MIT
// Which shards belong to which split of which rank, and what their urls are.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/loader_position.h"
#include "io/formats/webdataset.h"
#include "io/streams/url_source.h"

namespace dalle2 {

class PictureShards;

struct RankInfo {
  int rank = 0, world = 1;
};

/// All shards that a config names, by position. Nothing is stored for each shard of a template: of
/// `shards/{}.tar` there are ten million by default.
class ShardList {
 public:
  /// Lists the folders of local templates once. @throws ConfigError for urls that cannot be read as
  /// such
  explicit ShardList(const ShardDataConfig& config);
  ~ShardList();
  ShardList(const ShardList&) = delete;
  ShardList& operator=(const ShardList&) = delete;

  int64_t size() const { return size_; }
  std::string url(int64_t position) const;
  /// Of the positions those whose files can be there: local files are looked for.
  std::vector<uint32_t> existing(const std::vector<uint32_t>& positions) const;

  /// Where the number of shards comes from, for messages: a key of the config, and words.
  const char* key() const;
  std::string origin() const;
  /// The config's urls, without secrets, as short_shards() has them.
  std::string shown() const;
  /// "2 such files exist: shards 4 to 5", and what to do if none of a split does.
  std::string describe_existing() const;
  /// @param positions of the split @param split its name
  std::string advice(const std::vector<uint32_t>& positions, const std::string& split) const;

 private:
  struct Section;
  const Section& section_of(int64_t position) const;

  std::vector<std::string> texts_;
  std::shared_ptr<const PictureShards> pictures_;  // of a folder
  std::vector<Section> sections_;
  int64_t size_ = 0;
};

/// The urls of some shards in an order, made when asked for: four bytes a shard.
class ShardUrls {
 public:
  ShardUrls() = default;
  ShardUrls(std::vector<std::string> urls);            // NOLINT(google-explicit-constructor)
  ShardUrls(std::initializer_list<std::string> urls);  // NOLINT
  /// @param positions in the list
  ShardUrls(std::shared_ptr<const ShardList> list, std::vector<uint32_t> positions);

  size_t size() const { return list_ ? count_ : urls_.size(); }
  bool empty() const { return size() == 0; }
  std::string operator[](size_t index) const;
  std::string front() const { return (*this)[0]; }
  /// Those from `begin` up to `end`; what is stored is shared.
  ShardUrls part(size_t begin, size_t end) const;

 private:
  std::vector<std::string> urls_;
  std::shared_ptr<const ShardList> list_;
  std::shared_ptr<const std::vector<uint32_t>> positions_;
  size_t first_ = 0, count_ = 0;  // of the positions
};

/// Positions of the three splits of one rank, in the order they are read.
struct ShardSplit {
  std::vector<uint32_t> train, val, test;
};

/// The splits of a first run: a tenth of the shards, but at least one, for val and for test.
SplitConfig first_splits(int64_t shards);

/// The positions 0 .. shards - 1 of one slice in the splits, as split_shards() says. @return none if a
/// split would be empty
std::optional<ShardSplit> split_positions(const SplitConfig& splits, int64_t shards, int64_t seed);

/// Cuts the list into one contiguous slice a rank and permutes the slice's shards into train, test
/// and val as the reference does: torch.randperm with a generator seeded by `seed`. The list is not
/// probed: a shard's split does not depend on which files exist.
/// @throws ConfigError "Not enough shards", or naming an empty split and the shards it would take
ShardSplit split_shards(const SplitConfig& splits,
                        const ShardList& list,
                        int64_t seed,
                        RankInfo rank);

/// The urls of the shards that can exist: for files, those that are there, else all. Absent shards
/// are counted in one log line.
/// @param split names the split in messages
/// @throws DataError if not one of the files exists, with the shards that do
ShardUrls shard_urls(const std::shared_ptr<const ShardList>& list,
                     const std::vector<uint32_t>& positions,
                     const std::string& split);

/// The shards of `positions` that are not there, by their urls: the first three in the order of the
/// list, and how many more there are. @param found list.existing(positions)
std::string absent_shards(const ShardList& list,
                          std::vector<uint32_t> positions,
                          std::vector<uint32_t> found);

/// A hash of the file names of the shards in their order: the same for a copy of a data set in
/// another place.
std::string shard_names_hash(const ShardUrls& urls);

/// Why a position within an epoch is not one of `urls`: their names are others. None if it is, as far as
/// the position says.
/// @param shard_names shard_names_hash(urls)
std::optional<std::string> other_shards(const LoaderPosition& position,
                                        const ShardUrls& urls,
                                        const std::string& shard_names);

/// Whether a url is a file of this machine that does not exist.
bool is_absent_file(const std::string& url);

/// Shard number of a url: the last path part, without a query, up to its first dot.
/// @return -1 if that is not a number
int64_t shard_number(const std::string& address);

/// The samples of the shard at a url that open_source() knows. `options.offset` is 0 or a
/// SampleReader::next_offset(). @param caption_encoding of a folder's JSON that is not UTF-8
/// @throws what that throws
std::unique_ptr<SampleReader> open_shard(
    const std::string& url,
    MemberWarning warn = {},
    const SourceOptions& options = {},
    const std::string& caption_encoding = CaptionReadConfig().caption_encoding);

}  // namespace dalle2
