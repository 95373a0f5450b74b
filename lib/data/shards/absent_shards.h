// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shards/shards.h"

namespace dalle2 {

/// The shards of `positions` that are not there, by their urls: the first three in the order of the
/// list, and how many more there are. @param found list.existing(positions)
std::string absent_shards(const ShardList& list,
                          std::vector<uint32_t> positions,
                          std::vector<uint32_t> found);

}  // namespace dalle2
