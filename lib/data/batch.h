// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// What the loader yields.
struct Batch {
  at::Tensor images;        ///< [B, 3, H, W] float32 in [0, 1]
  at::Tensor image_embeds;  ///< [B, D] float32, undefined without
  at::Tensor
      text_encodings;  ///< [B, L, D] float32 ([B, D] from two-dimensional files), undefined without
  std::vector<std::string> captions;  ///< B texts as stored
  std::vector<std::string> keys;      ///< B sample keys
  /// Samples of the epoch passed when this batch was full, the ones with broken pictures too:
  /// start_epoch(epoch, position) goes on behind it.
  int64_t position = 0;

  int64_t size() const { return static_cast<int64_t>(keys.size()); }
};

}  // namespace dalle2
