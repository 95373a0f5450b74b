// SPDX-License-Identifier: MIT
// The widths of every part of a Unet, worked out from its options.
#pragma once

#include <cstdint>
#include <vector>

#include "config/decoder/decoder_config.h"

namespace dalle2 {

/// One resolution of a Unet; the same on the way down and up.
struct UnetLevel {
  int64_t in = 0;          ///< channels arriving from the finer level
  int64_t out = 0;         ///< channels of the coarser level
  int64_t width = 0;       ///< channels of the blocks on the way down
  int64_t groups = 0;      ///< of the group norms
  int64_t num_blocks = 0;  ///< not counting the first
  bool self_attn = false;
  bool first = false;  ///< the finest: no cross attention
  bool last = false;   ///< the coarsest
};

struct UnetShape {
  std::vector<UnetLevel> levels;  ///< fine to coarse
  int64_t channels_in = 0;        ///< image, self conditioning and low-res image together
  int64_t channels_out = 0;
  int64_t cond_dim = 0;  ///< width of the condition tokens
  int64_t time_dim = 0;  ///< width of the time vector
  int64_t mid_dim = 0;   ///< width of the coarsest level
  int64_t halvings = 0;  ///< the image's side must be a multiple of 2^halvings
};

/// @throws ConfigError listing whatever makes this unet impossible
UnetShape unet_shape(const UnetConfig& config);

}  // namespace dalle2
