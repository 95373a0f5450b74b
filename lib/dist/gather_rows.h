// SPDX-License-Identifier: MIT
// Rows of tensors of which each rank has some.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "dist/process_group.h"

namespace dalle2 {

/// The rows of all ranks on rank 0 alone, in pieces, each a sign of life. All ranks have to call it.
/// @param own [n, ...] contiguous on the CPU; n may be another on each rank, 0 too, and where it is
/// not 0 the rest of the shape and the type are the same
/// @return rank 0: a tensor a rank, in their order; on the others nothing
std::vector<at::Tensor> gather_rows(ProcessGroup& group,
                                    const at::Tensor& own,
                                    const std::string& what);

/// The rows of all ranks, in the order of the ranks.
struct GatheredRows {
  at::Tensor rows;    ///< [N, ...]; undefined if no rank has any
  int64_t begin = 0;  ///< the first of this rank's
};

/// All ranks call it. @param own [n, ...] float32 on the group's device, of one shape but for n;
/// undefined where a rank has none
GatheredRows all_gather_rows(ProcessGroup& group, const at::Tensor& own, const std::string& what);

}  // namespace dalle2
