// SPDX-License-Identifier: MIT
// Where the reading of an epoch stands, in a file: of `shards order --save`, or a run's checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "data/loader_position.h"
#include "data/shards.h"

namespace dalle2 {

struct OrderPosition {
  int64_t epoch = 0;
  int64_t samples = 0;  ///< of the epoch before it, over all ranks
  LoaderPosition loader = {};
  std::string shard_names = {};  ///< shard_names_hash() of its shards; "": not known
};

/// Reads a position from JSON or from a checkpoint. A checkpoint made after the training of its
/// epoch stands for the beginning of the next one.
/// @throws DataError naming file and entry for what is damaged; ConfigError if the file says that
/// another seed, order or split of the shards decides what its position means
OrderPosition read_order_position(const std::string& path, const TrainDecoderConfig& config);

/// @throws ConfigError if `urls`, the training shards of the config, are not those of the position
void check_same_shards(const std::string& path,
                       const OrderPosition& position,
                       const ShardUrls& urls);

/// Writes the position whole or not at all, with the part of the config that decides its meaning.
void write_order_position(const std::string& path,
                          const OrderPosition& position,
                          const TrainDecoderConfig& config);

/// A hash of the file names of the shards in their order: the same for a copy of a data set in
/// another place.
std::string shard_names_hash(const ShardUrls& urls);

}  // namespace dalle2
