// SPDX-License-Identifier: MIT
// Do the splits of a set hold the same kinds of pictures?
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include "io/formats/webdataset.h"

namespace dalle2 {

/// What the samples of one shard are like.
struct ShardTraits {
  /// Property ("top folder", "class", "shorter side", "transparency") -> value -> samples.
  std::map<std::string, std::map<std::string, int64_t>> values;
  std::unordered_set<uint64_t> pictures;  ///< hashes of their files

  /// @param shard_url its samples' keys are paths if it is one of PictureShards; of other shards the
  /// `source` in a sample's .json names the folder @param short_side pixels
  void add(const GroupedSample& sample,
           const std::string& shard_url,
           int64_t short_side,
           bool is_transparent);
};

/// Compares the splits that a first config makes of these shards. Properties are judged by a chi-squared
/// test over all values that 20 or more samples have; the threshold is about five standard deviations, so
/// that a set that was mixed at random gives nothing.
/// @return a line for each property in which they differ, and one if files are equal in two splits
std::vector<std::string> compare_splits(const std::vector<ShardTraits>& shards);

}  // namespace dalle2
