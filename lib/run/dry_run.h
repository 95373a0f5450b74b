// SPDX-License-Identifier: MIT
#pragma once

#include "config/run_config.h"

namespace dalle2 {

/// Finds the shards, builds the model, and prints what a run would take: parameters, samples and
/// steps of an epoch, the size of a checkpoint, an estimate of peak memory. Trains and writes
/// nothing.
/// @throws ConfigError, DataError as the run itself would
void dry_run(const LoadedDecoderConfig& loaded);

}  // namespace dalle2
