// SPDX-License-Identifier: MIT
// Pictures: decoding to RGB as Pillow does, Pillow's resampling, colours and rotation, PNG.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

/// 8-bit RGB, rows from the top, [height, width, 3] interleaved.
struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;
  /// [height, width], 255 is opaque; empty: all is opaque. Only DecodeOptions::keep_alpha sets it.
  std::vector<uint8_t> alpha = {};
};

using Rgb = std::array<uint8_t, 3>;

/// Pillow's limit against decompression bombs.
inline constexpr int64_t kMostImagePixels = 178'956'970;

/// A rectangle of a picture, pixels.
struct CropBox {
  int left = 0, top = 0, width = 0, height = 0;
  bool operator==(const CropBox&) const = default;
};

enum class Interpolation { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

class JpegReader;

/// How a file's pixels are taken. The defaults are those of Pillow's convert("RGB") (alpha is dropped, an EXIF orientation is ignored, 16
/// bits become 8), but for grey pictures with 16 bits, which are scaled: Pillow clips their values to 255.
struct DecodeOptions {
  bool apply_exif = false;  ///< turn the picture as its EXIF (or XMP) orientation says
  /// JPEG: decode at 1/2, 1/4 or 1/8 where that still has the pixels a resize asks for. Not
  /// bit-equal to the whole way.
  bool fast_jpeg = false;
  std::optional<Rgb> ground = {};  ///< under what is transparent; none: the colours stored there
  bool keep_alpha = false;         ///< as Image::alpha; no ground then
  /// Value of grey pictures with 16 bits that becomes 255; larger ones do too. 0: as the file says.
  int range = 0;
};

/// Decodes JPEG, PNG or WebP by content (a PNG named .jpg works).
/// @param origin names the picture in errors
/// @throws DataError (not a picture, truncated, damaged, too large), before anything is allocated
/// for a size beyond kMostImagePixels
Image decode_image(const std::string& content,
                   const std::string& origin,
                   DecodeOptions options = {});

/// What its file says of a picture, and what its pixels are like.
struct PictureFacts {
  int width = 0, height = 0;  ///< pixels, as the picture is shown: turned by its orientation
  int orientation = 1;        ///< EXIF, 1 to 8
  bool transparent = false;   ///< some pixel is not opaque
  bool grey = false;          ///< no pixel has a colour
  int grey_range = 0;         ///< of grey with 16 bits: the value that becomes 255; else 0
  int grey_largest = 0;       ///< of grey with 16 bits: the largest value

  bool is_deep_grey() const { return grey_range > 0; }
};

/// Decodes the whole picture. @throws DataError as decode_image does
PictureFacts look_at_picture(const std::string& content, const std::string& origin);

/// What a PNG says before its pixels.
struct PngHeader {
  int64_t width = 0, height = 0;  ///< pixels
  int channels = 0;               ///< 1 grey or palette, 2 grey and alpha, 3, 4
};
/// None for another file.
std::optional<PngHeader> png_header(std::string_view content);

/// A picture in memory: the header is read at once, of the pixels only what is asked for.
class EncodedImage {
 public:
  /// @param content outlives this object
  /// @param origin names the picture in errors
  /// @throws DataError as decode_image does
  EncodedImage(const std::string& content, std::string origin, DecodeOptions options = {});
  ~EncodedImage();

  int width() const { return width_; }    ///< pixels, as the picture is shown
  int height() const { return height_; }  ///< pixels
  /// Without `transparent`, with `grey` of a JPEG alone and, unless apply_exif is on, `orientation`.
  const PictureFacts& facts() const { return facts_; }

  // Each of these once, and one of them.

  /// The pixels of the box, which lies inside.
  Image crop(const CropBox& box);
  /// The box resampled to the size: what crop_resize makes of the whole picture, bit for bit unless
  /// fast_jpeg is on.
  Image crop_resize(const CropBox& box, int out_width, int out_height, Interpolation mode);

 private:
  std::string origin_;
  DecodeOptions options_;
  int width_ = 0, height_ = 0;
  PictureFacts facts_;
  int orientation_ = 1;               ///< EXIF, 1 to 8; of `jpeg_` alone
  std::unique_ptr<JpegReader> jpeg_;  ///< none: another format, which is always decoded whole
  Image decoded_;
};

/// "white", "black" or "R,G,B" of 0 to 255. @param option names it in the message @throws ConfigError
Rgb rgb_from_text(const char* option, const std::string& text);

/// The colours one after the other. @param planes [3, height, width]
void split_colours(const Image& image, uint8_t* planes);

/// Blends the picture onto a colour. It has no alpha afterwards.
void lay_on(Image& image, const Rgb& ground);

/// Crops the box (inside the image), then resamples to the size: torchvision's resized_crop on a Pillow
/// image, bit-equal. Pixels outside the crop have no influence.
Image crop_resize(
    const Image& image, const CropBox& box, int out_width, int out_height, Interpolation mode);

Image flip_horizontally(const Image& image);
/// @param outside value of the pixels of the box that are not of the picture
Image crop(const Image& image, const CropBox& box, uint8_t outside = 0);

/// The resolve_interpolation_mode names: bilinear bicubic box nearest nearest_exact hamming
/// lanczos.
/// @throws ConfigError for another, listing the names
Interpolation interpolation_from_name(const std::string& name);

std::string encode_png(const Image& image);                   ///< RGBA if the picture has alpha
void write_png(const std::string& path, const Image& image);  ///< whole or not at all
std::string encode_jpeg(const Image& image,
                        int quality);  ///< quality 1 to 100, colour not subsampled

// Colours and rotation, with the meaning of torchvision's adjust_* and rotate. By OpenCV, so values differ
// from Pillow's by rounding.

/// All values times `factor`.
void adjust_brightness(Image& image, double factor);
/// Distance of all values from the picture's mean lightness times `factor`.
void adjust_contrast(Image& image, double factor);
/// Distance of all values from the pixel's lightness times `factor`: 0 is grey.
void adjust_saturation(Image& image, double factor);
/// @param turn part of the circle of hues, -0.5 to 0.5
void adjust_hue(Image& image, double turn);

/// Of the longer side, pixels.
inline constexpr int kMostRotatedSide = 32'766;

/// Turned about its middle, the size unchanged.
/// @param image of at most kMostRotatedSide pixels a side
/// @param degrees counter-clockwise @param mode kNearest or kBilinear
/// @param fill red, green and blue of what comes from outside
Image rotate(Image image, double degrees, Interpolation mode, const std::array<double, 3>& fill);

}  // namespace dalle2
