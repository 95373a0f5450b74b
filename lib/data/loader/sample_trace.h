// SPDX-License-Identifier: MIT
// DALLE2_TRACE_SAMPLES=PATH: which samples a rank consumed, one JSON line a batch.
#pragma once

#include <cstdint>
#include <string>

#include "data/loader/batch.h"

namespace dalle2 {

/// Appends `{"rank":..,"split":..,"epoch":..,"keys":[..]}` to PATH.rankR, if the variable is set. A
/// line is written in one piece, so several loaders of a rank may share the file.
/// @throws DataError if the file cannot be written
void trace_samples(int rank, const std::string& split, int64_t epoch, const Batch& batch);

}  // namespace dalle2
