// SPDX-License-Identifier: MIT
#include "data/pictures/small_pictures.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/pictures/image.h"

namespace dalle2 {

void SmallPictures::look_at(const std::string& content, const std::string& origin) {
  int64_t width = 0, height = 0;
  if (const auto png = png_header(content)) {  // an EncodedImage would decode it whole
    width = png->width;
    height = png->height;
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
