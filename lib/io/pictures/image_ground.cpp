// SPDX-License-Identifier: MIT
// Pictures with transparency, blended onto white.
#include "base/error.h"
#include "io/pictures/image.h"
#include "io/pictures/image_codecs.h"

#include <png.h>

namespace dalle2 {
namespace {

/// @return none without an alpha channel or a transparent colour, before any pixel is decoded
std::optional<RgbaImage> decode_png_rgba(const std::string& content, const std::string& origin) {
  png_image reader{};
  reader.version = PNG_IMAGE_VERSION;
  RgbaImage image;
  if (png_image_begin_read_from_memory(&reader, content.data(), content.size()) != 0) {
    check_image_size(reader.width, reader.height, origin);
    if ((reader.format & PNG_FORMAT_FLAG_ALPHA) == 0) {
      png_image_free(&reader);
      return std::nullopt;
    }
    reader.format = PNG_FORMAT_RGBA;
    image.width = static_cast<int>(reader.width);
    image.height = static_cast<int>(reader.height);
    image.pixels.resize(PNG_IMAGE_SIZE(reader));
    png_image_finish_read(&reader, nullptr, image.pixels.data(), 0, nullptr);
  }
  const std::string message = PNG_IMAGE_FAILED(reader) ? reader.message : "";
  png_image_free(&reader);
  if (!message.empty()) throw DataError("{}: a PNG that cannot be read: {}.", origin, message);
  return image;
}

}  // namespace

std::optional<Image> decode_onto_white(const std::string& content, const std::string& origin) {
  std::optional<RgbaImage> decoded;
  if (content.starts_with("\x89PNG")) {
    decoded = decode_png_rgba(content, origin);
  } else if (content.starts_with("RIFF")) {
    decoded = decode_webp_rgba(content, origin);
  }
  if (!decoded) return std::nullopt;
  const RgbaImage& source = *decoded;
  Image image{source.width, source.height, {}};
  image.pixels.reserve(source.pixels.size() / 4 * 3);
  bool transparent = false;
  for (size_t at = 0; at < source.pixels.size(); at += 4) {
    const int alpha = source.pixels[at + 3];
    transparent = transparent || alpha != 255;
    for (size_t channel = 0; channel < 3; ++channel) {
      const int value = (source.pixels[at + channel] * alpha + 255 * (255 - alpha) + 127) / 255;
      image.pixels.push_back(static_cast<uint8_t>(value));
    }
  }
  if (!transparent) return std::nullopt;
  return image;
}

}  // namespace dalle2
