// SPDX-License-Identifier: MIT
// Which shards belong to which split of which rank, and what their urls are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/data_config.h"
#include "io/url_source.h"

namespace dalle2 {

/// Rank and world of this process.
struct RankInfo {
  int rank = 0, world = 1;
};

/// Shard numbers of the three splits of one rank, in the order they are read (data.md 1.1).
struct ShardSplit {
  std::vector<int64_t> train, val, test;
};

/// Cuts start_shard..end_shard into one contiguous slice a rank and permutes the slice's shards
/// into train, test and val as the reference does: torch.randperm with a generator seeded by
/// `seed`. The range is not probed: the default one holds ten million numbers (80 MB), whatever
/// exists.
/// @throws ConfigError "Not enough shards", or naming an empty split and the shards it would take
ShardSplit split_shards(const DecoderDataConfig& config, int64_t seed, RankInfo rank);

/// `base` with its placeholder replaced by the shard number, zero-padded to `shard_width` digits.
/// Placeholders are Python's: {} and {0}, {:05d} (which sets its own width), {{ and }} for braces.
/// @throws ConfigError without a placeholder, or for another one
std::string shard_url(const std::string& base, int64_t shard, int64_t shard_width);

/// The urls of the shards that can exist: for files, those that are there (the folder is listed
/// once, so a range of ten million costs nothing), else all. Absent shards are counted in one log
/// line.
/// @param split names the split in messages
/// @throws DataError if not one of the files exists, with the shards that do
std::vector<std::string> shard_urls(const DecoderDataConfig& config,
                                    const std::vector<int64_t>& shards,
                                    const std::string& split);

/// Urls from one string, as webdataset reads it: `a::b` lists, ${NAME} from the environment
/// variable WDS_NAME, and braces {000..012}, {a,b}, nested ones too. @throws ConfigError for an
/// unset variable
std::vector<std::string> expand_urls(const std::string& text);

/// Shard number of an url: the last path part, without a query, up to its first dot.
/// @return -1 if that is no number
int64_t shard_number(const std::string& address);

}  // namespace dalle2
