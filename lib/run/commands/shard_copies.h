// SPDX-License-Identifier: MIT
// Shards gone through once, with something made of each picture that is written beside it: what
// `shards encode` and `shards embed` share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "config/shared/shard_data_config.h"
#include "data/pictures/preprocess.h"
#include "dist/process_group.h"
#include "io/formats/webdataset.h"

namespace dalle2 {

/// What a command makes of the samples of a shard.
class ShardAddition {
 public:
  virtual ~ShardAddition() = default;
  virtual void begin_shard() = 0;
  /// Adds fields to samples. @param images [B, C, H, W] in [0, 1], their pictures
  virtual void add(std::vector<GroupedSample>& samples, const at::Tensor& images) = 0;
  /// The shard is complete, and is about to be committed. @param path of its file
  /// @return the files that were written beside it, by names in its folder
  virtual std::vector<std::string> end_shard(const std::string& path) = 0;
};

/// How shards are gone through, and where what is made of them goes.
struct ShardCopyPlan {
  const ShardDataConfig& data;
  std::string out_folder;
  std::string device;          ///< as asked for: check_same_config()
  bool overwrite = false;      ///< replace the shards that the folder holds
  const char* noun;            ///< what a sample gets: "latent"
  const char* manifest_name;   ///< of the file that says what the shards were made with
  std::string manifest;        ///< its text
  int64_t channels = 3;        ///< of the pictures
  bool need_captions = false;  ///< a sample without a caption is left out
};

struct ShardCopyCounts {
  int64_t samples = 0, left_out = 0, written = 0, lost = 0;
};

/// Writes the shards with what is made of them, as NewShards does, and prints how many. The ranks share the
/// shards: each writes files of its own. What cannot be decoded is left out; of a shard that cannot be read
/// to its end nothing is written: it is skipped, as in a training.
/// @param counts of all ranks
/// @return kStopped after a signal to any rank, with a line: the folder is as it was
/// @throws ConfigError (NewShards, the folder holds shards to read, two shards would get one name, the
/// ranks would make different things), NetworkError (shard after shard is out of reach), DataError (not
/// one can be read, no sample can be used)
ExitCode copy_shards(const ShardCopyPlan& plan,
                     ShardAddition& addition,
                     ProcessGroup& group,
                     ShardCopyCounts& counts);

}  // namespace dalle2
