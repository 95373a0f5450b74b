// SPDX-License-Identifier: MIT
// Where the reading of an epoch stands, in a file: of `shards order --save`, or a run's checkpoint,
// whose entries the former has as far as they concern the order.
#pragma once

#include <string>

#include "config/decoder/decoder_run_config.h"
#include "run/shards/shard_position.h"

namespace dalle2 {

/// Reads a position. A checkpoint made after the training of its epoch stands for the beginning of
/// the next one.
/// @throws DataError naming file and entry for what is damaged; ConfigError if the file says that
/// another seed, order or split of the shards decides what its position means
ShardPosition read_order_position(const std::string& path, const TrainDecoderConfig& config);

/// Writes the position whole or not at all, with the part of the config that decides its meaning.
void write_order_position(const std::string& path,
                          ShardPosition& position,
                          const TrainDecoderConfig& config);

}  // namespace dalle2
