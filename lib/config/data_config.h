// SPDX-License-Identifier: MIT
// `data` of a decoder config (config.md, section 4).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/types.h"

namespace dalle2 {

struct SplitConfig {
  double train = 0.75;
  double val = 0.15;
  double test = 0.1;
};

/// Names as in torchvision; JSON key order is the order of application.
enum class TransformKind {
  RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor,
};

struct TransformConfig {
  TransformKind kind = TransformKind::ToTensor;
  std::vector<int64_t> size;              ///< [side] or [height, width], pixels
  std::vector<double> scale = {0.08, 1.0};          ///< RandomResizedCrop: share of the area
  std::vector<double> ratio = {3.0 / 4.0, 4.0 / 3.0};
  std::string interpolation = "bilinear";
  double p = 0.5;                         ///< RandomHorizontalFlip
};

struct DecoderDataConfig {
  std::string webdataset_base_url;  // required; {} takes the padded shard number
  std::optional<std::string> img_embeddings_url;
  std::optional<std::string> text_embeddings_url;
  int64_t num_workers = 4;
  int64_t batch_size = 64;
  int64_t start_shard = 0;
  int64_t end_shard = 9999999;
  int64_t shard_width = 6;
  int64_t index_width = 4;
  SplitConfig splits;  // required
  bool shuffle_train = true;
  bool resample_train = false;
  std::vector<TransformConfig> preprocessing = {TransformConfig{}};
  // Extensions
  bool embeddings_in_tar = false;      ///< take <key>.img_emb.npy / <key>.text_emb.npy from the shards
};

}  // namespace dalle2
