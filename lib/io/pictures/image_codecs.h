// SPDX-License-Identifier: MIT
// What decodes and changes pictures behind image.h. Internal to lib/io.
#pragma once

#include "io/pictures/image.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace dalle2 {

/// @throws DataError if a header's size is zero or beyond Pillow's limit; asked before any
/// allocation.
void check_image_size(int64_t width, int64_t height, const std::string& origin);

/// RGB rows on their way from a decoder: `stride` bytes apart, kReadAhead readable bytes behind
/// each.
using RowSink = std::function<void(const uint8_t* rows, size_t stride, int count)>;

/// A JPEG whose header is read and whose pixels may be.
class JpegReader {
 public:
  /// @param content outlives the reader
  JpegReader(const std::string& content, const std::string& origin);
  ~JpegReader();

  int width() const;   ///< pixels, as stored
  int height() const;  ///< pixels, as stored
  bool is_grey() const;

  /// Hands the rows of the box to the sink. Once. The pixels are those of a whole decoding.
  /// @param box of the picture at 1/denominator scale, whose sides are rounded up
  /// @param denominator 1, 2, 4 or 8
  void read(const CropBox& box, int denominator, const RowSink& sink);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Takes `keep_alpha` and `range` of the options, and fills in what it knows of the facts.
Image decode_png(const std::string& content,
                 const std::string& origin,
                 const DecodeOptions& options,
                 PictureFacts& facts);

// Of an EXIF orientation, 1 to 8: how the stored picture is mirrored before its sides change places (5 to 8).
inline bool mirrors_x(int orientation) {
  return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}
inline bool mirrors_y(int orientation) {
  return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}
/// A contract: the box lies inside of a picture of this size.
void check_box(const CropBox& box, int width, int height);

Image turned(const Image& image, int orientation);

/// Does to colours, then to alpha what `change` does to a picture without alpha.
/// @param image with alpha
/// @param blends the change mixes neighbouring pixels: like Pillow, it then sees colours times alpha
Image change_with_alpha(const Image& image,
                        bool blends,
                        const std::function<Image(const Image&)>& change);

}  // namespace dalle2
