// SPDX-License-Identifier: MIT
// What others take of a decoder run: its config as files have it, its dry run, its memory budget.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "run/checkpoints/clip_weights.h"
#include "run/dry_run.h"

namespace dalle2 {

/// The config as it goes into a checkpoint: with all defaults, but in /decoder without nulls and
/// without extensions of ours that are off. The reference builds its Decoder from all it finds
/// there, and refuses both.
ConfigTexts config_texts(const LoadedDecoderConfig& loaded);

/// A decoder run without data. @param clip null: none
DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const ClipEmbedder* clip);

/// Lets the unets of a plan compute as few levels again as it takes for a step to stay within the budget.
/// @param memory of the plan as its networks are; then as they are afterwards
/// @return "unet 1: ..., the backward pass recomputes 2 of 4 levels (about 1.2 GiB instead of 3.1 GiB)"; one
/// for each unet that does
/// @throws ConfigError if even all levels are not enough: what a step needs, and what to change
std::vector<std::string> fit_memory_budget(const DryRunPlan& plan,
                                           const DecoderTrainConfig& train,
                                           PeakMemory& memory);

/// The choice of rank 0, which builds a model of its own for it; zeros without a budget.
/// @param group null: one process
/// @throws on rank 0 what its model or steps throw, on the others ConfigError with its text
std::vector<int64_t> levels_to_recompute(const LoadedDecoderConfig& loaded,
                                         const ClipEmbedder* clip,
                                         const at::Device& device,
                                         ProcessGroup* group);

}  // namespace dalle2
