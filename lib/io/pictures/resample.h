// SPDX-License-Identifier: MIT
// Resampling of rows as they come from a decoder. Internal to lib/io.
#pragma once

#include "io/pictures/image.h"
#include "io/pictures/resample_kernels.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace dalle2 {

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
