// SPDX-License-Identifier: MIT
// `train` of a decoder config, and a whole training file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/decoder/decoder_config.h"
#include "config/decoder/decoder_evaluate_config.h"
#include "config/kinds.h"
#include "config/shared/shard_data_config.h"
#include "config/shared/tracker_config.h"
#include "config/shared/train_options.h"

namespace dalle2 {

struct DecoderOnlyTrainConfig {
  int64_t n_sample_images = 6;
  OneOrMany<double> cond_scale = 1.0;
  std::optional<std::vector<bool>> unet_training_mask;
  double noise_offset = 0.0;
  std::optional<double> memory_budget_gib;

  void fields(auto& f) {
    D2_FIELD(
        n_sample_images,
        "Pictures that are drawn for the log with samples of the training shards, and as many with "
        "samples of the test shards; 0 for none.",
        within(0, most::kPictures));
    D2_FIELD(cond_scale, "Strength of classifier-free guidance when sampling; 1 means none.");
    D2_FIELD(
        unet_training_mask,
        "True for each unet that is trained; null trains all. The others take no memory. When the "
        "run draws, real pictures replace the output of the unets before the first trained one.",
        not_empty());
    D2_FIELD(noise_offset,
             "Strength of added noise that is the same in all pixels of a channel, with which the "
             "network learns pictures that are bright or dark as a whole; 0.05 to 0.1 is usual.",
             at_least(0));
    D2_FIELD(
        memory_budget_gib,
        "Largest peak memory of a process in GiB (with a GPU: its memory). If a step needs more, "
        "the backward pass computes activations again, from the largest feature maps on, until the "
        "estimate fits. Null for no limit.",
        above(0));
  }
};

struct DecoderTrainConfig : OptimizerConfig<OneOrMany>,
                            LossConfig<OneOrMany>,
                            SharedTrainConfig,
                            PassGraphConfig,
                            ShardLoopConfig,
                            DecoderOnlyTrainConfig {
  static constexpr const char* kDoc =
      "The optimisation and the loop. A list has one value for each unet.";

  DecoderTrainConfig() { epochs = 20; }

  /// What the options of the loss ask of unet `index`, from 0.
  LossPlan loss_plan(size_t index) const {
    LossPlan plan = LossConfig<OneOrMany>::loss_plan(index);
    plan.noise_offset = noise_offset;
    return plan;
  }

  void fields(auto& f) {
    OptimizerConfig::fields(f, above(0).up_to(1e-2));
    SharedTrainConfig::fields(f);
    PassGraphConfig::fields(f);
    LossConfig::fields(f);
    ShardLoopConfig::fields(f);
    DecoderOnlyTrainConfig::fields(f);
  }
};

struct TrainDecoderConfig : RootConfig {
  static constexpr const char* kDoc = "A file that trains a decoder.";
  static constexpr const char* kKind = "decoder";
  static FormatFields placeholders() { return shard_placeholders(); }

  DecoderConfig decoder;
  ShardDataConfig data;
  DecoderTrainConfig train;
  DecoderEvaluateConfig evaluate;
  std::optional<std::string> written_by;

  void fields(auto& f) {
    D2_REQUIRED(decoder, "The model.");
    D2_REQUIRED(data, "The samples.");
    D2_REQUIRED(train, "The optimisation; `{}` for the defaults.");
    D2_REQUIRED(evaluate, "The metrics; `{}` for the defaults.");
    D2_FIELD(written_by, kWrittenByDoc);
    RootConfig::fields(f, "Seed of weights, noise, and the order and split of the shards.");
  }
};

using LoadedDecoderConfig = Loaded<TrainDecoderConfig, DecoderPlan>;

LoadedDecoderConfig parse_decoder_config(const std::string& json,
                                         const std::string& origin,
                                         const ReadOptions& options);
inline constexpr auto& load_decoder_config = load_config<parse_decoder_config>;

}  // namespace dalle2
