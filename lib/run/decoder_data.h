// SPDX-License-Identifier: MIT
// The loaders of a decoder run (data.md 1.2).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "config/run_config.h"
#include "data/batch.h"
#include "data/loader.h"
#include "diffusion/decoder.h"
#include "dist/process_group.h"

namespace dalle2 {

/// Train, validation and test shards of a rank, and what each split's loader needs of a sample.
class DecoderData {
 public:
  /// @param device that batches go to: for a GPU they are made in page-locked memory
  DecoderData(const TrainDecoderConfig& config,
              const DecoderPlan& plan,
              RankInfo rank,
              const at::Device& device);

  /// The loaders' ranks keep step through `group`, which has to outlive them.
  void keep_step_through(ProcessGroup& group);

  /// A loader over "train", "val" or "test" in batches of `batch_size`.
  /// @param in_order keeps the order of the shards and takes each sample once, whatever the config
  /// says
  std::unique_ptr<DecoderLoader> loader(const std::string& split,
                                        int64_t batch_size,
                                        bool in_order) const;
  /// Over a share of the first `count` samples of a split, in order, whatever this rank is: what one
  /// share has no other has, and each reads the shards by itself.
  std::unique_ptr<DecoderLoader> loader_of_share(const std::string& split,
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

  /// Samples a whole epoch of a split holds, counted by walking its shards without decoding
  /// pictures.
  int64_t count_samples(const std::string& split) const;
  int64_t num_shards(const std::string& split) const;
  int64_t num_shards() const;  ///< of all splits

 private:
  const TrainDecoderConfig& config_;
  LoaderOptions needs_;
  ShardUrls train_, val_, test_;
};

/// A batch on `device`, as the decoder takes it. Copies to a GPU run on a stream of their own,
/// beside the step before; the current stream waits for them.
DecoderInputs to_inputs(const Batch& batch, const at::Device& device);

}  // namespace dalle2
