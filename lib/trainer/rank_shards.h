// SPDX-License-Identifier: MIT
// What each rank of a run keeps of a state that is spread over them (ZeRO stage 1, Rajbhandari et
// al. 2020, arXiv 1910.02054): moments and averages of a slice of the flat buffer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "dist/process_group.h"
#include "optim/flat_slice.h"

namespace dalle2 {

/// The same calls in the same order on all ranks.
class RankShards {
 public:
  /// @param numel of the flat buffer @param group has to outlive this object
  RankShards(ProcessGroup& group, int64_t numel);

  ProcessGroup& group() const { return group_; }
  /// One a rank.
  const std::vector<FlatSlice>& slices() const { return slices_; }
  /// This rank's slice.
  const FlatSlice& own() const;
  /// Gives each rank's slice of `whole` to all ranks, in place. @param whole [n]
  void share(const at::Tensor& whole, const std::string& what) const;
  /// @param own [length of this rank's slice] @return [n] on the device, on all ranks
  at::Tensor gather(const at::Tensor& own, const std::string& what) const;
  /// For files: goes through the device in pieces. @param own as for gather(), or the start of it
  /// @param numel of the whole that is wanted, at most n
  /// @return [numel] in host memory on rank 0, undefined on the others
  at::Tensor gather_on_main(const at::Tensor& own, int64_t numel, const std::string& what) const;

 private:
  ProcessGroup& group_;
  std::vector<FlatSlice> slices_;
  int64_t numel_;
};

}  // namespace dalle2
