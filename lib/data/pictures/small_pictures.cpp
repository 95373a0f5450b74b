// SPDX-License-Identifier: MIT
#include "data/pictures/small_pictures.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/pictures/image.h"

namespace dalle2 {
namespace {

int64_t big_endian(const std::string& bytes, size_t begin) {
  int64_t value = 0;
  for (size_t i = begin; i < begin + 4; ++i) value = value * 256 + static_cast<uint8_t>(bytes[i]);
  return value;
}

}  // namespace

void SmallPictures::look_at(const std::string& content, const std::string& origin) {
  int64_t width = 0, height = 0;
  if (content.starts_with("\x89PNG\r\n") && content.size() >= 24) {  // without decoding it whole
    width = big_endian(content, 16);
    height = big_endian(content, 20);
  } else {
    try {
      const EncodedImage picture(content, origin);
      width = picture.width();
      height = picture.height();
    } catch (const DataError&) {
      return;
    }
  }
  if (std::min(width, height) >= side_) return;
  const int64_t count = ++count_;
  if (count == 1) {
    log_warning(
        "clip",
        "{}: has {} x {} pixels, and the CLIP sees {} x {}: smaller pictures are enlarged, and their "
        "embeddings say less. Use larger pictures, or a CLIP that sees smaller ones.",
        printable(origin),
        width,
        height,
        side_,
        side_);
    return;
  }
  for (int64_t round = 100; round <= count; round *= 10) {
    if (round == count)
      log_warning(
          "clip", "pictures were enlarged for the CLIP {} times so far", with_commas(count));
  }
}

}  // namespace dalle2
