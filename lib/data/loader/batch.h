// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "data/loader/loader_position.h"

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

}  // namespace dalle2
