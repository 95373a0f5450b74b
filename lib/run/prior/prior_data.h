// SPDX-License-Identifier: MIT
// From rows to what a prior takes.
#pragma once

#include <memory>
#include <string>

#include "config/prior/prior_run_config.h"
#include "data/embeddings/prior_dataset.h"
#include "diffusion/prior/prior.h"
#include "run/checkpoints/clip_weights.h"

namespace dalle2 {

/// @param prior_name, clip_name in messages @throws DataError for a CLIP whose embeddings, or
/// encodings where the prior takes them, have another width than the prior
void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name);

/// The CLIP of /prior/clip, which fits the prior; null for none. @throws as open_clip_of()
std::shared_ptr<ClipEmbedder> open_prior_clip(const PriorConfig& prior);

/// Rows for a run with that CLIP, or without. @throws as PriorDataset
PriorDataset prior_data(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// clip_sha256() of the CLIP whose embeddings of texts the run has: of `clip`, or what `shards embed`
/// has written beside the folder /data/text_url on this machine. Empty if it is not known.
std::string clip_identity(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// Warns if the embeddings of pictures are of another CLIP than those of texts, as far as `shards embed` has written that down.
void warn_of_several_clips(const TrainPriorConfig& config, const ClipEmbedder* clip);

/// Reads training rows until one can be used, some 65,000 at most. @throws DataError if there are no
/// more, and none can
void check_usable(const PriorDataset& data, bool has_clip);
/// @throws DataError: none of the training rows can be used
[[noreturn]] void throw_nothing_usable(const PriorDataset& data, bool has_clip);

/// What a CLIP makes of texts: encodings no longer than the prior takes, and none where it takes none.
TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior);

/// A batch on `device`, as the prior takes it: with what the CLIP makes of captions and pictures.
/// @param clip null: the batch has embeddings
PriorInputs to_inputs(const PriorBatch& batch,
                      const at::Device& device,
                      const ClipEmbedder* clip,
                      const PriorConfig& prior);

}  // namespace dalle2
