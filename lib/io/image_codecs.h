// SPDX-License-Identifier: MIT
// The decoders behind decode_image, one a format. Internal to lib/io.
#pragma once

#include "io/image.h"

#include <cstdint>
#include <string>
#include <vector>

namespace dalle2 {

/// @throws DataError if a header's size is zero or beyond Pillow's limit; asked before any
/// allocation.
void check_image_size(int64_t width, int64_t height, const std::string& origin);

Image decode_jpeg(const std::string& content, const std::string& origin);
Image decode_png(const std::string& content, const std::string& origin);
Image decode_webp(const std::string& content, const std::string& origin);

/// Four bytes a pixel, colour not multiplied by alpha.
struct RgbaImage {
  int width = 0, height = 0;
  std::vector<uint8_t> pixels;
};
RgbaImage decode_webp_rgba(const std::string& content, const std::string& origin);

}  // namespace dalle2
