// SPDX-License-Identifier: MIT
// WebP through libwebp.
#include "base/error.h"
#include "io/pictures/image_codecs.h"

#include <webp/decode.h>

namespace dalle2 {

namespace {

/// @param image receives size and pixels, `channels` bytes each
/// @param decode the function of libwebp for these channels
template <class AnyImage>
void decode_into(AnyImage& image,
                 size_t channels,
                 decltype(WebPDecodeRGBInto)* decode,
                 const std::string& content,
                 const std::string& origin) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(content.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, content.size(), &features) != VP8_STATUS_OK) {
    throw DataError("{}: damaged or truncated WebP", origin);
  }
  if (features.has_animation != 0) {
    throw DataError("{}: an animated WebP; expected a still picture", origin);
  }
  check_image_size(features.width, features.height, origin);
  image.width = features.width;
  image.height = features.height;
  const size_t stride = channels * static_cast<size_t>(image.width);
  image.pixels.resize(stride * static_cast<size_t>(image.height));
  if (decode(bytes,
             content.size(),
             image.pixels.data(),
             image.pixels.size(),
             static_cast<int>(stride)) == nullptr) {
    throw DataError("{}: damaged or truncated WebP of {}x{}", origin, image.width, image.height);
  }
}

}  // namespace

Image decode_webp(const std::string& content, const std::string& origin) {
  Image image;
  decode_into(image, 3, WebPDecodeRGBInto, content, origin);
  return image;
}

RgbaImage decode_webp_rgba(const std::string& content, const std::string& origin) {
  RgbaImage image;
  decode_into(image, 4, WebPDecodeRGBAInto, content, origin);
  return image;
}

}  // namespace dalle2
