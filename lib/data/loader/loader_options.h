// SPDX-License-Identifier: MIT
// What a loader is asked for, and what it yields.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader/drop_log.h"
#include "data/loader/loader_position.h"
#include "data/shards/shards.h"

namespace dalle2 {

/// What the loader yields. Without a sample (and without tensors) it is the share of a rank whose
/// lanes are out while other ranks still have some.
struct Batch {
  at::Tensor images;  ///< [B, C, H, W] float32 in [0, 1], or uint8: LoaderOptions::byte_pictures
  at::Tensor image_embeds;  ///< [B, D] float32, undefined without
  at::Tensor
      text_encodings;  ///< [B, L, D] float32 ([B, D] from two-dimensional files), undefined without
  at::Tensor latents;  ///< [B, D, h, w] float32, undefined without
  std::vector<std::string> captions;  ///< B texts as stored
  std::vector<std::string> keys;      ///< B sample keys
  std::vector<ShardPlace> places;     ///< B, in the shards of the lane
  /// Where the epoch continues after this batch: start_epoch(epoch, position) begins there.
  LoaderPosition position;

  int64_t samples_of_step = 0;  ///< of all ranks
  int64_t row = 0;              ///< LoaderPosition::row of its first sample

  int64_t size() const { return static_cast<int64_t>(keys.size()); }

  /// Every tensor with the samples in its first dimension.
  void tensors(const auto& f) {
    f(images);
    f(image_embeds);
    f(text_encodings);
    f(latents);
  }
};

/// What a loader reads and how.
struct LoaderOptions {
  std::string split = "train";      ///< named in messages and in the sample trace
  ShardUrls urls = {};              ///< of all ranks; each lane takes an even, contiguous part
  std::string shard_names = {};     ///< shard_names_hash() of them, for positions; "": not kept
  int64_t most_shards = INT64_MAX;  ///< that an epoch opens: fewer, to have a look
  int64_t most_samples =
      INT64_MAX;  ///< of an epoch: its first ones, whose pictures are not looked at yet
  RankInfo share =
      {};  ///< which of those are decoded and handed out: a part that no other share has
  int64_t shard_width = 6;  ///< digits of {} in a url of embeddings
  int64_t batch_size = 64;
  bool shuffle = false;        ///< shards in an order drawn from (seed, epoch)
  bool resample = false;       ///< endless draws with replacement
  int64_t shuffle_buffer = 1;  ///< samples that are mixed with each other; 1: as they come
  bool may_be_empty = false;   ///< no usable sample in an epoch is a warning, not an error
  bool need_captions = false;  ///< true: a missing caption drops the sample; false: it is ""
  bool need_image_embeds = false;
  bool need_text_encodings = false;
  bool need_latents = false;
  std::optional<int64_t> image_embed_dim =
      {};  ///< width the model takes; others are an error at the start
  std::optional<int64_t> text_embed_dim = {};
  std::optional<int64_t> latent_side = {};  ///< likewise, of the latents
  int64_t channels = 3;                     ///< of the pictures: 1 grey, 3, or 4 with transparency
  bool byte_pictures = false;  ///< Batch::images as bytes, which floats_from_bytes() takes
  std::optional<at::Device> gpu =
      {};  ///< batches in page-locked memory, for copies to it that overlap
  /// What earlier loaders of this split have warned of, and this one adds to; null: nothing.
  std::shared_ptr<DropCounts> told = {};
  int64_t seed = 0;
  RankInfo rank = {};
  /// The lane that these options are for, of how many: it addresses the draws. Set by the loader.
  RankInfo lane = {};
  /// Lanes of an epoch that begins; none: as many as ranks.
  std::optional<int64_t> lanes = {};
  /// Asked once a step with several ranks: given the samples of this rank's batch, gives those of
  /// all ranks. kStopAsked instead of a number: a signal ended the wait for the batch. kFault: it
  /// cannot be read. None for a single rank.
  std::function<std::vector<int64_t>(int64_t own)> share_sizes = {};
  static constexpr int64_t kStopAsked = -1, kFault = -2;
  /// Checks each batch after it is read. If it throws a DataError, all ranks learn of it, as they do of a
  /// batch that cannot be read.
  std::function<void(const Batch& batch)> check_batch = {};
};

}  // namespace dalle2
