// SPDX-License-Identifier: MIT
// A whole training file of a CLIP.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "config/clip/clip_network_config.h"
#include "config/kinds.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"

namespace dalle2 {

struct ClipTokenizerConfig {
  static constexpr const char* kDoc =
      "The vocabulary that turns captions into tokens; by default OpenAI's, which "
      "`scripts/clip_vocabulary.sh` puts into `~/.cache/dalle2-train`. A checkpoint holds the "
      "vocabulary of its model.";
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  std::optional<int64_t> train;
  std::optional<std::string> path;

  void fields(auto& f) {
    D2_FIELD(
        train,
        "Train a vocabulary of this many tokens (then `clip.text_cfg.vocab_size`) on the training "
        "captions, before the first update.",
        within(515, 1 << 24));
    D2_FIELD(path, "File of a vocabulary in OpenAI's format.", not_empty());
  }
};

struct ClipModelConfig : ClipNetworkConfig {
  static constexpr UnknownKeys kUnknownKeys = UnknownKeys::fatal;

  ClipTokenizerConfig tokenizer;

  void fields(auto& f) {
    ClipNetworkConfig::fields(f);
    D2_FIELD(tokenizer, "Extension: how captions become tokens.");
  }
};

/// What only a CLIP has.
struct ClipOnlyTrainConfig {
  double max_logit_scale = 100;

  void fields(auto& f) {
    D2_FIELD(
        max_logit_scale,
        "Upper limit of the learned factor of the cosines (the inverse temperature), to which it "
        "is clamped after each update; the lower limit is 1.",
        at_least(1).up_to(1e4));
  }
};

struct ClipTrainConfig : OptimizerConfig<Single>,
                         SharedTrainConfig,
                         ShardLoopConfig,
                         ClipOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. The defaults are those of open_clip. The loss is that of all "
      "samples of an update together, however they are divided among processes, `grad_accum_every` "
      "batches and chunks (`max_batch_size`). A ResNet sees them all at once: the statistics of "
      "its batch norms are those of a pass.";
  static constexpr std::array kRefusedKeys = {
      RefusedKey{"cuda_graph",
                 "has no place here: a decoder and a prior record their passes as CUDA graphs, a "
                 "CLIP does not; leave it out"}};

  ClipTrainConfig() {
    lr = 5e-4;
    wd = 0.2;
    eps = 1e-6;
    betas = {0.9, 0.98};
    max_grad_norm = std::nullopt;
    epochs = 32;
    use_ema = false;
    lora.targets = {"out_proj", "c_fc", "c_proj"};
  }

  void fields(auto& f) {
    OptimizerConfig::fields(f);
    SharedTrainConfig::fields(f);
    ShardLoopConfig::fields(f);
    ClipOnlyTrainConfig::fields(f);
  }
};

struct TrainClipConfig : RootConfig {
  static constexpr const char* kDoc = "A file that trains a CLIP.";
  static constexpr const char* kKind = "clip";
  static FormatFields placeholders() { return shard_placeholders(); }
  static constexpr std::array kRefusedKeys = {
      RefusedKey{"evaluate",
                 "has no place here: a CLIP is measured by its loss and by retrieval (R@1, R@5) "
                 "alone; leave it out"}};

  ClipModelConfig clip;
  ShardDataConfig data;
  ClipTrainConfig train;

  void fields(auto& f) {
    D2_REQUIRED(clip, "The model.");
    D2_REQUIRED(data, "The samples: pictures and captions.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    RootConfig::fields(f);
  }
};

using LoadedClipConfig = Loaded<TrainClipConfig>;

/// What is wrong in the file, all of it, is thrown: load_config().
LoadedClipConfig parse_clip_config(const std::string& json,
                                   const std::string& origin,
                                   const ReadOptions& options);

}  // namespace dalle2
