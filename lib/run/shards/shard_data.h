// SPDX-License-Identifier: MIT
// The loaders of a run over shards.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "config/shared/shard_data_config.h"
#include "data/loader/loader.h"
#include "data/loader/loader_options.h"
#include "data/pictures/preprocess.h"
#include "data/shards/picture_shards.h"
#include "dist/process_group.h"
#include "io/pictures/picture_tally.h"

namespace dalle2 {

/// Train, validation and test shards, and what each split's loader needs of a sample.
class ShardData {
 public:
  /// @param config has to outlive this object @param needs of a sample: the kind's
  /// @param device that batches go to: for a GPU they are made in page-locked memory
  /// @throws ConfigError for urls that cannot be read as such
  ShardData(const ShardDataConfig& config,
            int64_t seed,
            LoaderOptions needs,
            const at::Device& device = at::kCPU,
            RankInfo rank = {});

  /// Slices of a run that begins: /data/lanes, or as many as ranks, as in the reference.
  int64_t slices_at_begin() const { return config_.lanes.value_or(needs_.rank.world); }
  /// Cuts the shards into `slices`, by default slices_at_begin(), and deals each into the splits; comes
  /// before what reads them. It depends on neither rank nor world. @throws ConfigError, DataError
  void deal(std::optional<int64_t> slices = std::nullopt);
  /// Those of a run that begins, until the shards are dealt.
  int64_t slices() const { return slices_; }

  /// The loaders' ranks keep step through `group`, which has to outlive them.
  void keep_step_through(ProcessGroup& group);

  /// A loader over "train", "val" or "test" in batches of `batch_size`, to be moved by copy_to_device(): for a GPU its pictures are
  /// bytes. Those of the loaders below are floats.
  /// @param in_order keeps the order of the shards and takes each sample once, whatever the config
  /// says
  std::unique_ptr<ShardLoader> loader(const std::string& split,
                                      int64_t batch_size,
                                      bool in_order) const;
  /// Over a share of the first `count` samples of a split, in order, whatever this rank is: what one
  /// share has no other has, and each reads the shards by itself.
  std::unique_ptr<ShardLoader> loader_of_share(const std::string& split,
                                               int64_t count,
                                               int64_t batch_size,
                                               const RankInfo& share) const;
  /// The options of the first loader.
  LoaderOptions options(const std::string& split, int64_t batch_size, bool in_order) const;

  /// The first `count` samples of a split, fewer if there are not that many; none if count is 0.
  std::optional<Batch> examples(const std::string& split, int64_t count) const;

  /// Reads and decodes the first usable sample of a split. @throws DataError, which says what was
  /// found, if the first few shards have none
  void check_usable(const std::string& split) const;

  const ShardDataConfig& config() const { return config_; }
  /// How pictures are read.
  DecodeOptions reading() const { return decode_options(config_, needs_.channels); }
  /// The folder of pictures that stands for shards; null for shards.
  std::shared_ptr<const PictureShards> pictures() const;
  /// Differs where the shards of a split do.
  std::string names() const { return names_; }
  /// Why a position within an epoch is not one of these training shards; none if it is.
  std::optional<std::string> other_shards(const LoaderPosition& position) const;

  /// Samples a whole epoch of a split holds, counted by walking its shards without decoding
  /// pictures. What is left out is added to `dropped`, and the first few are named in warnings.
  /// @param pictures looks at the first ones, until it has seen enough; null: nobody does
  int64_t count_samples(const std::string& split,
                        DropCounts& dropped,
                        PictureTally* pictures = nullptr) const;
  /// Hands out the captions of a split in the order of its shards, without decoding pictures, until
  /// `more` is false. @throws StoppedError after a signal
  void for_each_caption(const std::string& split,
                        const std::function<bool(const std::string& caption)>& more) const;
  int64_t num_shards(const std::string& split) const;
  /// All that there are, those that are left over too.
  int64_t num_shards() const;

 private:
  const ShardUrls& urls(const std::string& split) const;

  const ShardDataConfig& config_;
  LoaderOptions needs_;
  mutable std::map<std::string, std::shared_ptr<DropCounts>> told_;  // by split, in all epochs
  std::shared_ptr<const ShardList> list_;
  int64_t slices_ = 0;
  ShardUrls train_, val_, test_;
  std::string train_names_, names_;  // shard_names_hash(): of the training shards, of all
};

/// What `check` says of an example's pictures begins with the sample's key.
template <class Check>
void naming_sample(const Batch& example, const Check& check) {
  try {
    check();
  } catch (const DataError& error) {
    throw DataError("sample {}: {}", one_line(example.keys.front()), error.what());
  }
}

}  // namespace dalle2
