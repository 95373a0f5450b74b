// SPDX-License-Identifier: MIT
// Transparency: a ground under it, and changes of pictures that keep it.
#include "base/error.h"
#include "base/untrusted_text.h"
#include "io/pictures/image.h"
#include "io/pictures/image_codecs.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace dalle2 {

Rgb rgb_from_text(const char* option, const std::string& text) {
  if (text == "white") return {255, 255, 255};
  if (text == "black") return {0, 0, 0};
  Rgb colour{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < colour.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ',')) break;
    const auto [next, fault] = std::from_chars(at, end, colour[i]);
    if (fault != std::errc()) break;
    at = next;
    if (i == 2 && at == end) return colour;
  }
  throw ConfigError(
      "{} {}: expected white, black or red, green and blue from 0 to 255, as in 255,240,200",
      option,
      printable(text));
}

void lay_on(Image& image, const Rgb& ground) {
  for (size_t i = 0; i < image.alpha.size(); ++i) {
    const int alpha = image.alpha[i];
    for (size_t channel = 0; channel < 3; ++channel) {
      uint8_t& value = image.pixels[3 * i + channel];
      value = static_cast<uint8_t>((value * alpha + ground[channel] * (255 - alpha) + 127) / 255);
    }
  }
  image.alpha.clear();
}

Image change_with_alpha(const Image& image,
                        bool blends,
                        const std::function<Image(const Image&)>& change) {
  Image colours = image, coverage{image.width, image.height, {}};
  coverage.pixels.reserve(image.pixels.size());
  for (const uint8_t alpha : image.alpha) coverage.pixels.insert(coverage.pixels.end(), 3, alpha);
  if (blends) lay_on(colours, {0, 0, 0});
  colours.alpha.clear();
  Image result = change(colours);
  const Image changed = change(coverage);
  result.alpha.resize(result.pixels.size() / 3);
  for (size_t i = 0; i < result.alpha.size(); ++i) {
    const int alpha = result.alpha[i] = changed.pixels[3 * i];
    for (size_t channel = 0; blends && alpha > 0 && channel < 3; ++channel) {
      uint8_t& value = result.pixels[3 * i + channel];
      value = static_cast<uint8_t>(std::min(255 * value / alpha, 255));  // as Pillow rounds
    }
  }
  return result;
}

}  // namespace dalle2
