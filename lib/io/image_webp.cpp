// SPDX-License-Identifier: MIT
// WebP through libwebp.
#include "base/error.h"
#include "io/image_codecs.h"

#include <webp/decode.h>

namespace dalle2 {

Image decode_webp(const std::string& content, const std::string& origin) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(content.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, content.size(), &features) != VP8_STATUS_OK) {
    throw DataError("{}: damaged or truncated WebP", origin);
  }
  if (features.has_animation != 0) {
    throw DataError("{}: an animated WebP; expected a still picture", origin);
  }
  check_image_size(features.width, features.height, origin);
  Image image;
  image.width = features.width;
  image.height = features.height;
  const size_t stride = 3 * static_cast<size_t>(image.width);
  image.pixels.resize(stride * static_cast<size_t>(image.height));
  if (WebPDecodeRGBInto(bytes,
                        content.size(),
                        image.pixels.data(),
                        image.pixels.size(),
                        static_cast<int>(stride)) == nullptr) {
    throw DataError("{}: damaged or truncated WebP of {}x{}", origin, image.width, image.height);
  }
  return image;
}

}  // namespace dalle2
