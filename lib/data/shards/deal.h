// SPDX-License-Identifier: MIT
// Which pictures of a folder lie together in a shard.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/shared/shard_data_config.h"

namespace dalle2 {

/// Digits of a shard's number, and of the place in it at the end of a key, in what this program makes.
inline constexpr int64_t kShardWidth = 6, kIndexWidth = 4;

struct DealOptions {
  FolderOrder order = FolderOrder::mixed;
  int64_t seed = 0;       ///< of `mixed` and `together`
  int64_t per_shard = 0;  ///< pictures; with `together` on average. 0: a tenth of all, 1000 at most
  int64_t index_width = kIndexWidth;  ///< digits that count the pictures of a shard
};

/// Deals pictures into shards. The result depends on the paths and the options alone.
///
/// `mixed`: within each folder the pictures are ordered by a hash, and those of each folder are
/// spread evenly over the whole, level by level. Any range of shards then holds of each folder its
/// share, to within one picture for each level of folders.
/// `together`: all pictures of a lowest folder lie in one shard. The folders are dealt from the largest
/// to the smallest, each to the shard with the fewest pictures. Pictures without a folder are dealt
/// one by one.
/// @param paths below the folder, sorted
/// @return numbers of `paths` for each shard; no shard is empty
/// @throws ConfigError for `together` if all pictures lie in one subfolder, and if a shard has more
/// pictures than the digits can count
std::vector<std::vector<size_t>> deal(const std::vector<std::string>& paths,
                                      const DealOptions& options);

}  // namespace dalle2
