// SPDX-License-Identifier: MIT
// Sampling with a PriorTrainer, and the texts for it.
#include <torch/torch.h>

#include <utility>

#include "base/error.h"
#include "trainer/prior_trainer_state.h"

namespace dalle2 {
namespace {

at::Tensor to_device(const at::Tensor& tensor, const at::Device& device) {
  return tensor.defined() ? tensor.to(device) : tensor;
}

int64_t texts_of(const PriorSampleOptions& options) {
  const at::Tensor& embeds = options.text.embeds;
  if (!embeds.defined() || embeds.dim() != 2 || embeds.size(0) == 0) {
    throw DataError("text embeddings: expected a batch [B, D] of at least one, got {}",
                    embeds.defined() ? c10::str(embeds.sizes()) : "nothing");
  }
  return embeds.size(0);
}

/// `draw` of each chunk of the texts, with the averaged network unless `use_non_ema`.
template <class Draw>
at::Tensor in_chunks(PriorTrainerState& state,
                     const PriorSampleOptions& options,
                     bool use_non_ema,
                     std::optional<int64_t> max_batch_size,
                     const Draw& draw) {
  state.settle();
  const torch::NoGradGuard no_grad;
  std::optional<AverageInPlace> average;
  if (!use_non_ema) average.emplace(state);
  std::vector<at::Tensor> embeds;
  for (const ChunkRange& range : chunk_ranges(texts_of(options), max_batch_size)) {
    PriorSampleOptions chunk = options;
    chunk.text = chunk_of(options.text, range);
    chunk.text = {to_device(chunk.text.embeds, state.device),
                  to_device(chunk.text.encodings, state.device)};
    embeds.push_back(draw(chunk));
  }
  return at::cat(embeds);
}

}  // namespace

at::Tensor PriorTrainer::sample(const PriorSampleOptions& options,
                                bool use_non_ema,
                                std::optional<int64_t> max_batch_size) {
  return in_chunks(*state_, options, use_non_ema, max_batch_size, [&](const auto& chunk) {
    return state_->prior->sample(chunk);
  });
}

at::Tensor PriorTrainer::p_sample_loop(const PriorSampleOptions& options,
                                       bool use_non_ema,
                                       std::optional<int64_t> max_batch_size) {
  return in_chunks(*state_, options, use_non_ema, max_batch_size, [&](const auto& chunk) {
    return state_->prior->p_sample_loop(chunk);
  });
}

TextEmbedding PriorTrainer::embed_text(TextEncoder& encoder,
                                       const at::Tensor& tokens,
                                       std::optional<int64_t> max_batch_size) {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> embeds, encodings;
  for (const ChunkRange& range : chunk_ranges(tokens.size(0), max_batch_size)) {
    const TextEmbedding part =
        encoder.embed_text(tokens.narrow(0, range.begin, range.length).to(state_->device));
    embeds.push_back(part.embeds);
    if (part.encodings.defined()) encodings.push_back(part.encodings);
  }
  if (embeds.empty()) throw DataError("embed_text: expected at least one text, got none");
  return {at::cat(embeds), encodings.empty() ? at::Tensor() : at::cat(encodings)};
}

}  // namespace dalle2
