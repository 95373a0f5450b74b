// SPDX-License-Identifier: MIT
// From a loader's batches to what a CLIP takes, and what its validation measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/clip/clip_run_config.h"
#include "io/text/clip_tokenizer.h"
#include "metrics/embedding_metrics.h"
#include "run/shards/shard_data.h"

namespace dalle2 {

/// Of a sample: its picture, of the side that the model sees, and its caption.
LoaderOptions clip_needs(const ClipNetworkConfig& config);

/// The vocabulary of /clip/tokenizer: trained on the captions of the training shards, or from a file.
/// @throws ConfigError if it is not of /clip/text_cfg/vocab_size tokens, or its file is nowhere
ClipTokenizer make_clip_tokenizer(const ClipModelConfig& config, const ShardData& data);
/// @throws ConfigError unless the vocabulary is of as many tokens as the model
void check_vocabulary(const ClipTokenizer& tokenizer, const ClipNetworkConfig& config);

/// Warns of captions that are too long for a CLIP: of the first one, and at 100, 1,000, ... of them.
class LongCaptions {
 public:
  /// @param cut captions of a batch, which were cut @param room tokens that a caption may have
  void add(const std::vector<std::string>& cut, int64_t room);

 private:
  int64_t count_ = 0;
};

/// Texts that are too long are cut. @param long_captions is given those, if it is not null
/// @return [B, L] int64 on the CPU
at::Tensor tokens_of(const std::vector<std::string>& texts,
                     const ClipTokenizer& tokenizer,
                     int64_t context_length,
                     TextFrame frame = TextFrame::kEnclosed,
                     LongCaptions* long_captions = nullptr);

/// What a validation has seen of this rank's samples.
class ClipValidation {
 public:
  /// @param pairs [B, 2, D], by pair_features()
  void add(const at::Tensor& pairs, const std::vector<std::string>& captions);
  /// Those of all ranks, which call it together; then it is empty again.
  RetrievalSamples gather(ProcessGroup& group);

 private:
  std::vector<at::Tensor> pairs_;  // on the run's device: a copy to the host would wait for it
  std::vector<int64_t> captions_;
};

}  // namespace dalle2
