// SPDX-License-Identifier: MIT
// What others take of a prior's run: its CLIP, its data, and what it makes of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/prior/prior_run_config.h"
#include "data/embeddings/prior_dataset.h"
#include "diffusion/prior/prior.h"
#include "run/checkpoints/clip_weights.h"
#include "trainer/prior_trainer.h"

namespace dalle2 {

// From rows to what a prior takes.

/// @param prior_name, clip_name in messages @throws DataError for a CLIP whose embeddings, or
/// encodings where the prior takes them, have another width than the prior
void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name);

/// The CLIP of /prior/clip, which fits the prior; null for none. @throws as open_clip_of()
std::shared_ptr<LoadedClip> open_prior_clip(const PriorConfig& prior);

/// Rows for a run with that CLIP, or without. @throws as PriorDataset
PriorDataset prior_data(const TrainPriorConfig& config, const LoadedClip* clip);

/// What a CLIP makes of texts: encodings no longer than the prior takes, and none where it takes none.
TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior);

/// A batch on `device`, as the prior takes it: with what the CLIP makes of captions and pictures.
/// @param clip null: the batch has embeddings
PriorInputs to_inputs(const PriorBatch& batch,
                      const at::Device& device,
                      const LoadedClip* clip,
                      const PriorConfig& prior);

/// Of all splits.
int64_t count_rows(const PriorDataset& data);

}  // namespace dalle2
