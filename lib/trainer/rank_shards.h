// SPDX-License-Identifier: MIT
// What each rank of a run keeps of a state that is spread over them (ZeRO stage 1, Rajbhandari et
// al. 2020, arXiv 1910.02054): moments and averages of a slice of the flat buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dist/process_group.h"
#include "optim/flat_parameters.h"

namespace dalle2 {

struct ShardOptions {
  bool shard_optimizer = false;  ///< moments and averages are spread over the ranks
  std::string scratch_path;  ///< of a file in which a save puts them together (gather_to_file())
};

/// The same calls in the same order on all ranks.
class RankShards {
 public:
  /// @param numel of the flat buffer @param group has to outlive this object
  /// @param scratch_path of a file that gather_to_file() makes for a moment
  RankShards(ProcessGroup& group, int64_t numel, std::string scratch_path);

  ProcessGroup& group() const { return group_; }
  /// One a rank.
  const std::vector<FlatSlice>& slices() const { return slices_; }
  const FlatSlice& own() const { return slices_[static_cast<size_t>(group_.rank())]; }
  /// Gives each rank's slice of `whole` to all ranks, in place. @param whole [n]
  void share(const at::Tensor& whole, const std::string& what) const;
  /// For checkpoints: passes through memory in pieces of 64 MiB and goes to a file, which has no
  /// name any more when this returns and is gone with the tensor.
  /// @param own [length of this rank's slice], or the start of it @param numel of the whole that is wanted, at
  /// most n @return [numel] in that file on rank 0, only to be read; undefined on the others
  /// @throws on rank 0 as AtomicFile, when all have given what they have
  at::Tensor gather_to_file(const at::Tensor& own, int64_t numel, const std::string& what) const;

 private:
  ProcessGroup& group_;
  std::vector<FlatSlice> slices_;
  std::string scratch_path_;
};

}  // namespace dalle2
