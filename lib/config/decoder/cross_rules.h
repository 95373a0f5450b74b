// SPDX-License-Identifier: MIT
// Rules between the sections of a decoder config.
#pragma once

#include "config/decoder/decoder_run_config.h"
#include "config/reading/faults.h"

namespace dalle2 {

/// Embedding sources, lengths of the per-unet arrays of `train`, and what
/// one section asks of another. Asks only sections without faults of their own.
void check_sections(const TrainDecoderConfig& config, const DecoderPlan& plan, Faults& faults);

}  // namespace dalle2
