// SPDX-License-Identifier: MIT
// WebP through libwebp.
#include "base/error.h"
#include "io/pictures/image_codecs.h"

#include <utility>

#include <webp/decode.h>

namespace dalle2 {

Image decode_webp(const std::string& content, const std::string& origin, bool keep_alpha) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(content.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, content.size(), &features) != VP8_STATUS_OK) {
    throw DataError("{}: damaged or truncated WebP", origin);
  }
  if (features.has_animation != 0) {
    throw DataError("{}: an animated WebP; expected a still picture", origin);
  }
  check_image_size(features.width, features.height, origin);
  const bool keeps_alpha = keep_alpha && features.has_alpha != 0;
  Image image{features.width, features.height, {}};
  const size_t stride = (keeps_alpha ? 4 : 3) * static_cast<size_t>(image.width);
  image.pixels.resize(stride * static_cast<size_t>(image.height));
  const auto decode = keeps_alpha ? WebPDecodeRGBAInto : WebPDecodeRGBInto;
  if (decode(bytes,
             content.size(),
             image.pixels.data(),
             image.pixels.size(),
             static_cast<int>(stride)) == nullptr) {
    throw DataError("{}: damaged or truncated WebP of {}x{}", origin, image.width, image.height);
  }
  if (!keeps_alpha) return image;
  std::vector<uint8_t> rgba = std::move(image.pixels);
  image.pixels.clear();
  for (size_t at = 0; at < rgba.size(); at += 4) {
    image.pixels.insert(image.pixels.end(), {rgba[at], rgba[at + 1], rgba[at + 2]});
    image.alpha.push_back(rgba[at + 3]);
  }
  return image;
}

}  // namespace dalle2
