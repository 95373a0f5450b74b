// SPDX-License-Identifier: MIT
// A loader's position as an entry of a checkpoint.
#pragma once

#include "checkpoint/state_dict.h"
#include "data/loader/loader_position.h"

namespace dalle2 {

/// {next_lane: int, lanes: [{...}], shard_names: str}, with the numbers of each LanePosition.
Value value_of(const LoaderPosition& position);
/// Entries that an earlier version did not write keep their defaults.
/// @throws DataError naming the entry that is of another type, or no position of any epoch
LoaderPosition loader_position_of(const Cursor& saved);

}  // namespace dalle2
