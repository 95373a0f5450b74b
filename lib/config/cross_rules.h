// SPDX-License-Identifier: MIT
// Rules between the sections of a decoder config.
#pragma once

#include "config/faults.h"
#include "config/run_config.h"

namespace dalle2 {

/// Embedding sources (config.md, section 1), lengths of the per-unet arrays of `train`, and what
/// one section asks of another. Asks only sections without faults of their own.
void check_sections(const TrainDecoderConfig& config, const DecoderPlan& plan, Faults& faults);

}  // namespace dalle2
