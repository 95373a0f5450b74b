// SPDX-License-Identifier: MIT
// Pictures: decoding to RGB as Pillow does, Pillow's resampling, PNG.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dalle2 {

/// 8-bit RGB, rows from the top, [height, width, 3] interleaved.
struct Image {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;
};

/// Pillow's limit against decompression bombs.
inline constexpr int64_t kMostImagePixels = 178'956'970;

enum class Interpolation { kNearest, kBox, kBilinear, kHamming, kBicubic, kLanczos };

/// Decodes JPEG, PNG or WebP by content (a PNG named .jpg works), to RGB like Pillow's
/// convert("RGB"): alpha is dropped, an EXIF orientation is ignored, 16 bits become 8.
/// @param origin names the picture in errors
/// @throws DataError (not a picture, truncated, damaged, too large), before anything is allocated
/// for a size beyond kMostImagePixels
Image decode_image(const std::string& content, const std::string& origin);

/// A PNG or WebP with transparency, blended onto white. @return none for other pictures
/// @throws DataError as decode_image does
std::optional<Image> decode_onto_white(const std::string& content, const std::string& origin);

/// Crops `left, top, width, height` (inside the image), then resamples to the size: torchvision's
/// resized_crop on a Pillow image, bit-equal. Pixels outside the crop have no influence.
Image crop_resize(const Image& image,
                  int left,
                  int top,
                  int width,
                  int height,
                  int out_width,
                  int out_height,
                  Interpolation mode);

Image flip_horizontally(const Image& image);
Image crop(const Image& image, int left, int top, int width, int height);  ///< outside is black

/// The resolve_interpolation_mode names: bilinear bicubic box nearest nearest_exact hamming
/// lanczos.
/// @throws ConfigError for another, listing the names
Interpolation interpolation_from_name(const std::string& name);

std::string encode_png(const Image& image);
void write_png(const std::string& path, const Image& image);  ///< whole or not at all
std::string encode_jpeg(const Image& image,
                        int quality);  ///< quality 1 to 100, colour not subsampled

}  // namespace dalle2
