// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include "data/loader/batch.h"
#include "dist/process_group.h"

namespace dalle2 {

/// Rank 0's batch on all ranks; all have to call it. Of `own` on the others nothing is looked at.
/// @return none if rank 0 has none
std::optional<Batch> batch_of_main(ProcessGroup& group, std::optional<Batch> own);

}  // namespace dalle2
