// SPDX-License-Identifier: MIT
// `shards check`: are the shards whole, and do the embeddings belong to them?
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "config/shared/shard_data_config.h"
#include "data/loader/drop_log.h"
#include "io/formats/webdataset.h"
#include "io/pictures/picture_tally.h"

namespace dalle2 {

struct CheckOptions {
  std::vector<std::string> urls = {};
  std::optional<std::string> img_embeddings_url = {};   ///< folder, as in the config
  std::optional<std::string> text_embeddings_url = {};  ///< likewise
  bool allow_pipe = false;                              ///< urls may be commands
  bool embeddings_in_tar = false;  ///< image embeddings, if there is no folder of them
  int64_t shard_width = 6;         ///< digits of {} in a url of embeddings
  int64_t index_width = 4;
  std::string caption_encoding = CaptionReadConfig().caption_encoding;
  int64_t threads = 4;
};

struct ShardCheck {
  std::string url;
  bool is_virtual = false;   ///< of a folder of pictures
  bool is_lost = false;      ///< absent, damaged, out of reach, or without samples
  bool unreachable = false;  ///< it, or its embeddings, by a fault of the network
  int64_t samples = 0, usable = 0;
  int64_t no_caption = 0;  ///< of the usable ones
  int64_t misaligned =
      0;  ///< samples whose key says that their embeddings may be another picture's
  int64_t passed_over = 0;  ///< members: SampleReader::passed_over()
  DropLog drops;            ///< what is wrong, as a loader would tell it, and of keys and rows
  DropLog captions;         ///< notes on captions
  std::map<int64_t, int64_t> short_sides;  ///< of each shorter side in pixels: how many pictures
  std::map<int64_t, int64_t> shapes;       ///< of each shorter by longer side in percent, likewise
  PictureTally pictures;

  void lose(const char* reason, const std::string& text);
};

struct CheckReport {
  std::vector<ShardCheck> shards;
  std::vector<int64_t> image_row_shape, text_row_shape;  ///< empty without embeddings
  int64_t embedding_files = 0;                           ///< in the folders
  int64_t unused_files = 0;                    ///< of them, for shards that are not among the urls
  std::vector<std::string> split_differences;  ///< compare_splits()

  // Of all shards, as ShardCheck has them:
  int64_t samples = 0, usable = 0, no_caption = 0, misaligned = 0, passed_over = 0, lost = 0;
  bool unreachable = false;
  DropLog drops, captions;
  PictureTally pictures;
};

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

/// Compares the splits that a first config makes of these shards by each value that 20 or more samples
/// have. A set that was mixed at random gives nothing.
/// @return a line for each property in which they differ, and one if files are equal in two splits
std::vector<std::string> compare_splits(const std::vector<ShardTraits>& shards);

/// The .tar files of a folder, sorted. @throws DataError if there are none
std::vector<std::string> shards_in_folder(const std::string& folder);

/// Reads every shard through and decodes every picture.
/// @param progress told the shards done, one call at a time
/// @throws DataError for embedding folders that cannot be right
CheckReport check_shards(const CheckOptions& options,
                         const std::function<void(int64_t done, int64_t total)>& progress = {});

/// The report as lines: one a shard, with examples of its faults, then the sums.
std::vector<std::string> describe_check(const CheckReport& report);

}  // namespace dalle2
