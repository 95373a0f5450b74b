// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/shards.h"

namespace dalle2 {

/// What a loader reads and how.
struct LoaderOptions {
  std::string split = "train";  ///< named in messages and in the sample trace
  ShardUrls urls;
  int64_t shard_width = 6;  ///< digits of {} in an url of embeddings
  int64_t batch_size = 64;
  bool shuffle = false;        ///< shards in an order drawn from (seed, epoch)
  bool resample = false;       ///< endless draws with replacement
  bool may_be_empty = false;   ///< no usable sample in an epoch is a warning, not an error
  bool need_captions = false;  ///< true: a missing caption drops the sample; false: it is ""
  bool need_image_embeds = false;
  bool need_text_encodings = false;
  std::optional<int64_t>
      image_embed_dim;  ///< width the model takes; others are an error at the start
  std::optional<int64_t> text_embed_dim;
  int64_t seed = 0;
  RankInfo rank;
};

}  // namespace dalle2
