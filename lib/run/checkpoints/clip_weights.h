// SPDX-License-Identifier: MIT
// What a CLIP takes of a batch, and what its validation measures. A CLIP that is used, not trained: from a
// file of a run or from one of another program, and as the runs of decoders and priors have it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/clip/clip_file.h"
#include "checkpoint/convert.h"
#include "config/shared/clip_config.h"
#include "io/text/clip_tokenizer.h"
#include "metrics/feature_metrics.h"
#include "model/clip/clip_encoder.h"
#include "run/checkpoints/model_weights.h"
#include "run/shards/shard_data.h"
#include "trainer/tensor_group.h"

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
  std::string captions_;           // a number each, in bytes
};

/// A CLIP that is frozen and in eval mode, how it takes texts, and how it computes.
struct LoadedClip {
  std::shared_ptr<ClipEncoderImpl> clip;
  std::shared_ptr<const ClipTokenizer> tokenizer;
  TextFrame frame = TextFrame::kEnclosed;
  std::string name = "";  ///< in messages, of a section: "/prior/clip (clip.pth)"
  MixedPrecision precision = MixedPrecision::no;
  std::optional<int64_t> max_batch_size = {};  ///< samples of a chunk; none: all at once
  ShardDataConfig trained_on = {};             ///< of a run; else the defaults
  mutable LongCaptions long_captions = {};

  /// Tokens of a text, with those that enclose it.
  int64_t text_len() const;
  /// Tokens that a text may have by itself.
  int64_t text_room() const { return text_len() - enclosing_tokens(frame); }
  /// Texts that are too long are cut, which `cut` reports, if it is not null.
  /// @return [B, text_len()] int64 on the CPU
  at::Tensor tokens_of(const std::vector<std::string>& texts, LongCaptions* cut = nullptr) const;
  /// Makes it a part of `model`, whose checkpoints then hold it and which takes it to its device.
  void hold_in(torch::nn::Module& model) const;

  // On the CLIP's device, in float32.
  /// @param images [B, 3, H, H] in [0, 1] @return [B, D]
  /// @throws DataError for pictures smaller than those that it sees
  at::Tensor embed_images(const at::Tensor& images) const;
  /// @param tokens [B, L]
  TextEmbedding embed_tokens(const at::Tensor& tokens) const;
  /// Texts that are too long are cut, with a warning. @return encodings as long as the longest text
  TextEmbedding embed_captions(const std::vector<std::string>& captions) const;
};

/// Of a run, whose network is known.
struct LoadedRunClip : LoadedClip {
  std::shared_ptr<ClipImpl> network;  ///< the same as `clip`
};

/// Of a checkpoint or model file of a run. @throws as load_clip_model(), DataError also for one
/// without a vocabulary or with weights that are not finite
LoadedRunClip load_clip(const ModelSource& source, const Value& checkpoint);
/// The file that --clip or a config's "model" means: a path, or a name of OpenAI's, whose package keeps its
/// files in ~/.cache/clip. @throws ConfigError if it is nowhere
std::string clip_file_of(const std::string& model);
/// The same of any file that read_clip_file() or as_x_clip_file() reads. @param name as of clip_file_of()
/// @throws as those, and as find_clip_vocabulary(); ConfigError for hints on a file of a run
LoadedClip load_clip_file(const std::string& name, const ClipFileHints& hints = {});

/// The CLIP of a section; null for none. @param pointer of the section, "/prior/clip"
/// @throws ConfigError if it is nowhere, DataError for one that cannot be used
std::shared_ptr<LoadedClip> open_clip_of(const std::optional<ClipConfig>& config,
                                         const std::string& pointer);

// Of a prior.
/// @param prior_name, clip_name in messages @throws DataError for a CLIP whose embeddings, or
/// encodings where the prior takes them, have another width than the prior
void check_clip_widths(const PriorConfig& prior,
                       const std::string& prior_name,
                       const ClipEncoderImpl& clip,
                       const std::string& clip_name);
/// What a CLIP makes of texts: encodings no longer than the prior takes, and none where it takes none.
TextEmbedding as_prior_takes(TextEmbedding texts, const PriorConfig& prior);

/// A hash of a CLIP's weights and of what else decides its embeddings.
std::string clip_sha256(const ClipEncoderImpl& clip);

/// Writes the CLIP of any file that load_clip_file() takes in open_clip's layout, of a run's the averages: write_clip_file().
/// @throws as load_clip_file(), though no vocabulary is looked for; ConfigError if `out` lies beside another model's config
ConvertReport convert_to_open_clip(const std::string& in, const std::string& out);

}  // namespace dalle2
