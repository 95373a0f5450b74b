// SPDX-License-Identifier: MIT
// Parts of a batch, for batches that do not fit into memory at once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "diffusion/decoder.h"
#include "diffusion/prior.h"

namespace dalle2 {

/// Samples [begin, begin + length) of a batch.
struct ChunkRange {
  int64_t begin = 0;
  int64_t length = 0;
};

/// Chunks of `max_batch_size` samples, the last one what is left; none: the whole batch is one.
/// @throws ConfigError for a max_batch_size below 1
std::vector<ChunkRange> chunk_ranges(int64_t batch, std::optional<int64_t> max_batch_size);

/// Every tensor with samples in its first dimension is cut, what belongs to the batch is kept.
DecoderInputs chunk_of(const DecoderInputs& inputs, const ChunkRange& range);
DecoderStepNoise chunk_of(const DecoderStepNoise& draws, const ChunkRange& range);
DecoderSampleOptions chunk_of(const DecoderSampleOptions& options, const ChunkRange& range);
TextEmbedding chunk_of(const TextEmbedding& text, const ChunkRange& range);
PriorInputs chunk_of(const PriorInputs& inputs, const ChunkRange& range);
PriorStepNoise chunk_of(const PriorStepNoise& draws, const ChunkRange& range);

/// Images that `options` asks for: the length of the first tensor given, else batch_size.
int64_t sample_batch(const DecoderSampleOptions& options);

}  // namespace dalle2
