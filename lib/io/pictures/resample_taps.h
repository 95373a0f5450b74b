// SPDX-License-Identifier: MIT
// Which input pixels make an output pixel, along one axis. Internal to lib/io.
#pragma once

#include "io/pictures/image.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dalle2 {

inline constexpr int kFractionBits = 32 - 8 - 2;  ///< of a weight; Pillow's PRECISION_BITS

/// The taps of every output pixel along one axis.
struct Taps {
  int most = 0;                  ///< stride of `weights`, a multiple of 4
  std::vector<int32_t> first;    ///< first tap of an output pixel
  std::vector<int32_t> count;    ///< taps of an output pixel
  std::vector<int32_t> weights;  ///< [out, most], fixed point, 0 behind `count`

  size_t size() const { return first.size(); }
  const int32_t* of(size_t out) const { return weights.data() + out * static_cast<size_t>(most); }
};

/// Pillow's coefficients for the part [begin, end) of `in_size` pixels, not for kNearest.
Taps make_taps(int in_size, double begin, double end, int out_size, Interpolation mode);

/// kNearest: the input pixel of each output pixel.
std::vector<int> nearest_pixels(int in_size, double begin, double end, int out_size);

}  // namespace dalle2
