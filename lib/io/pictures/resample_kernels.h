// SPDX-License-Identifier: MIT
// The inner loops of resampling. Internal to lib/io.
#pragma once

#include "io/pictures/resample_taps.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dalle2 {

/// Bytes after the last pixel of a row that horizontal_pass() may read (and ignores).
inline constexpr size_t kReadAhead = 16;
/// Bytes after the last pixel of a row that it may write.
inline constexpr size_t kWriteAhead = 1;

/// Taps and, for the vector units, their weights as pairs of 16 bits, w = high * 2^15 + low, and as
/// four times 8 bits, w = digits[2] * 2^16 + digits[1] * 2^8 + digits[0], each of -128 ... 127.
struct SplitTaps {
  explicit SplitTaps(Taps given);

  Taps taps;
  std::vector<int32_t> low, high;              ///< [out, most / 2], two weights each
  std::array<std::vector<int32_t>, 3> digits;  ///< [out, most / 4], four weights each
};

/// The inner loops in one kind of instructions.
struct ResampleKernels {
  /// RGB rows to rows of the new width.
  /// `in`: rows of RGB, `in_stride` bytes apart, with kReadAhead bytes after each. `out`: the same
  /// for the result, with kWriteAhead bytes after each.
  void (*horizontal_pass)(const uint8_t* in,
                          size_t in_stride,
                          int rows,
                          uint8_t* out,
                          size_t out_stride,
                          const SplitTaps& taps);
  /// Output row y of the vertical pass, `bytes` values.
  /// `in`: row 0 of all input rows, which lie `stride` bytes apart.
  void (*vertical_row)(const uint8_t* in,
                       size_t stride,
                       const SplitTaps& taps,
                       size_t y,
                       uint8_t* out,
                       size_t bytes);
};

ResampleKernels plain_kernels();             ///< of any machine
const ResampleKernels& best_kernels();       ///< the fastest of this machine
std::vector<ResampleKernels> all_kernels();  ///< that run here

}  // namespace dalle2
