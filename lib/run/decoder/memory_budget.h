// SPDX-License-Identifier: MIT
// /train/memory_budget_gib: which activations the backward pass computes again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/decoder/decoder_run_config.h"
#include "diffusion/decoder/decoder.h"
#include "dist/process_group.h"
#include "run/clip/clip_embedder.h"
#include "run/dry_run.h"

namespace dalle2 {

/// A decoder run without data. @param clip null: none
DryRunPlan decoder_dry_run_plan(const LoadedDecoderConfig& loaded, const ClipEmbedder* clip);

/// What fits the budget.
struct MemoryChoice {
  std::vector<int64_t> levels;  ///< of each unet, as UnetImpl::recompute_levels() takes them
  PeakMemory before, after;
};

/// The fewest levels of each unet with which a step stays within the budget.
/// @param memory of the plan as its networks are
/// @throws ConfigError if even all levels are not enough: what a step needs, and what to change
MemoryChoice fit_memory_budget(const DryRunPlan& plan,
                               const DecoderTrainConfig& train,
                               const PeakMemory& memory);

/// "unet 1: the backward pass recomputes 2 of 4 levels: about 1.2 GiB instead of 3.1 GiB"; a line for each unet
/// that does.
std::vector<std::string> describe(const MemoryChoice& choice, const DryRunPlan& plan);

/// The choice of rank 0, which builds a model of its own for it; zeros without a budget.
/// @param group null: one process
/// @throws on rank 0 what its model or steps throw, on the others ConfigError with its text
std::vector<int64_t> levels_to_recompute(const LoadedDecoderConfig& loaded,
                                         const ClipEmbedder* clip,
                                         const at::Device& device,
                                         ProcessGroup* group);

}  // namespace dalle2
