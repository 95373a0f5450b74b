// SPDX-License-Identifier: MIT
// A loader's position as an entry of a checkpoint.
#pragma once

#include "checkpoint/state_dict.h"
#include "data/loader_position.h"

namespace dalle2 {

/// {next_lane: int, lanes: [{...}]}, with the numbers of each LanePosition.
Value value_of(const LoaderPosition& position);
/// @throws DataError naming the entry that is missing or of another type
LoaderPosition loader_position_of(const Cursor& saved);

}  // namespace dalle2
