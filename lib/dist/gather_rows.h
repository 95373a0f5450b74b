// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace dalle2
