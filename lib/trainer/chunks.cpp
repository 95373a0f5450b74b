// SPDX-License-Identifier: MIT
#include "trainer/chunks.h"

#include <torch/torch.h>

#include <algorithm>

#include "base/error.h"

namespace dalle2 {
namespace {

at::Tensor cut(const at::Tensor& tensor, const ChunkRange& range) {
  return tensor.defined() ? tensor.narrow(0, range.begin, range.length) : tensor;
}

}  // namespace

std::vector<ChunkRange> chunk_ranges(int64_t batch, std::optional<int64_t> max_batch_size) {
  if (max_batch_size && *max_batch_size < 1) {
    throw ConfigError(
        "max_batch_size: expected at least 1, got {}; leave it out (null) for whole batches",
        *max_batch_size);
  }
  const int64_t size = max_batch_size.value_or(batch);
  std::vector<ChunkRange> ranges;
  for (int64_t begin = 0; begin < batch; begin += size) {
    ranges.push_back({begin, std::min(size, batch - begin)});
  }
  return ranges;
}

DecoderInputs chunk_of(const DecoderInputs& inputs, const ChunkRange& range) {
  return {cut(inputs.images, range),
          cut(inputs.image_embeds, range),
          cut(inputs.text_encodings, range)};
}

DecoderStepNoise chunk_of(const DecoderStepNoise& draws, const ChunkRange& range) {
  DecoderStepNoise chunk = draws;
  for (at::Tensor* tensor : {&chunk.times,
                             &chunk.noise,
                             &chunk.image_keep_mask,
                             &chunk.text_keep_mask,
                             &chunk.lowres.noise,
                             &chunk.lowres.noise_level,
                             &chunk.augmentation.offset,
                             &chunk.augmentation.perturbation}) {
    *tensor = cut(*tensor, range);
  }
  if (!draws.crop_offsets.empty()) {
    const auto first = draws.crop_offsets.begin() + range.begin;
    chunk.crop_offsets.assign(first, first + range.length);
  }
  return chunk;
}

DecoderSampleOptions chunk_of(const DecoderSampleOptions& options, const ChunkRange& range) {
  DecoderSampleOptions chunk = options;
  chunk.batch_size = range.length;
  for (at::Tensor* tensor : {&chunk.image_embeds,
                             &chunk.text_encodings,
                             &chunk.image,
                             &chunk.inpaint_image,
                             &chunk.inpaint_mask}) {
    *tensor = cut(*tensor, range);
  }
  for (at::Tensor& noise : chunk.init_noise) {
    noise = cut(noise, range);
  }
  return chunk;
}

TextEmbedding chunk_of(const TextEmbedding& text, const ChunkRange& range) {
  return {cut(text.embeds, range), cut(text.encodings, range)};
}

PriorInputs chunk_of(const PriorInputs& inputs, const ChunkRange& range) {
  return {cut(inputs.image_embeds, range), chunk_of(inputs.text, range)};
}

PriorStepNoise chunk_of(const PriorStepNoise& draws, const ChunkRange& range) {
  PriorStepNoise chunk = draws;
  for (at::Tensor* tensor : {&chunk.times,
                             &chunk.noise,
                             &chunk.text_keep_mask,
                             &chunk.image_keep_mask,
                             &chunk.augmentation.perturbation}) {
    *tensor = cut(*tensor, range);
  }
  chunk.dropout.first_sample += range.begin;
  return chunk;
}

int64_t sample_batch(const DecoderSampleOptions& options) {
  for (const at::Tensor& tensor :
       {options.image_embeds, options.text_encodings, options.image, options.inpaint_image}) {
    if (tensor.defined()) {
      return tensor.size(0);
    }
  }
  return options.batch_size;
}

}  // namespace dalle2
