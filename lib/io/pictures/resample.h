// SPDX-License-Identifier: MIT
// Resampling of rows as they come from a decoder, and its inner loops. Internal to lib/io.
#pragma once

#include "io/pictures/image.h"

#include <cstddef>
#include <cstdint>
#include <memory>
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

/// Bytes after the last pixel of a row that horizontal_pass() may read (and ignores).
inline constexpr size_t kReadAhead = 16;
/// Bytes after the last pixel of a row that it may write.
inline constexpr size_t kWriteAhead = 1;

/// Taps and, for the vector units, their weights as pairs of 16 bits, w = high * 2^15 + low.
struct SplitTaps {
  explicit SplitTaps(Taps given);

  Taps taps;
  std::vector<int32_t> low, high;  ///< [out, most / 2], two weights each
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

const ResampleKernels& best_kernels();       ///< the fastest of this machine
std::vector<ResampleKernels> all_kernels();  ///< that run here, those of any machine first

/// A part of a picture with edges between pixels.
struct RealBox {
  double left = 0, top = 0, width = 0, height = 0;
};

/// Pillow's resize(size, mode, box), fed with the rows of a picture from the top. One at a time in
/// a thread: it works in room that the thread keeps, of at most 16 MiB; a picture that needs more
/// has room of its own.
class Resampler {
 public:
  /// @param width, height of the picture that comes
  /// @param box the part of it that is resampled
  Resampler(
      int width, int height, const RealBox& box, int out_width, int out_height, Interpolation mode);

  /// The next rows: RGB, `stride` bytes apart, kReadAhead readable bytes after each.
  void push(const uint8_t* rows, size_t stride, int count);
  /// The result, once all rows were pushed.
  Image finish();

 private:
  void push_nearest(const uint8_t* rows, size_t stride, int count);

  int width_, height_, out_width_, out_height_;
  int pushed_ = 0;
  bool vertical_first_ = false;
  std::shared_ptr<const SplitTaps> across_;          // none: the width stays
  std::shared_ptr<const SplitTaps> down_;            // none: the height stays
  std::vector<int> nearest_columns_, nearest_rows_;  // kNearest only
  Image nearest_;
  size_t middle_stride_ = 0;
  std::vector<uint8_t> own_room_;  // of a large picture
  uint8_t* middle_ = nullptr;      // the rows so far, through the horizontal pass
};

/// Resamples the part `box` of the pixels `from`; `box` is relative to their corner.
Image resample(const Image& image,
               const CropBox& from,
               const RealBox& box,
               int out_width,
               int out_height,
               Interpolation mode);

}  // namespace dalle2
