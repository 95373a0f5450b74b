// SPDX-License-Identifier: MIT
#include "io/pictures/picture_tally.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "base/text.h"

namespace dalle2 {

void PictureTally::add(const PictureFacts& facts) {
  ++pictures;
  grey += facts.grey ? 1 : 0;
  transparent += facts.transparent ? 1 : 0;
  rotated += facts.orientation != 1 ? 1 : 0;
  deep_grey += facts.is_deep_grey() ? 1 : 0;
  if (facts.grey_range == 65'535) grey_largest = std::max(grey_largest, facts.grey_largest);
}

void PictureTally::add(const PictureTally& other) {
  pictures += other.pictures;
  grey += other.grey;
  transparent += other.transparent;
  rotated += other.rotated;
  deep_grey += other.deep_grey;
  grey_largest = std::max(grey_largest, other.grey_largest);
}

bool PictureTally::look_at(const std::string& content) {
  constexpr int64_t kMostPictures = 1000, kMostBytes = int64_t{1} << 28;
  try {
    // Of a JPEG the header tells all.
    const bool is_jpeg = content.starts_with("\xff\xd8");
    add(is_jpeg ? EncodedImage(content, "", {.apply_exif = true}).facts()
                : look_at_picture(content, ""));
  } catch (const DataError&) {  // who decodes it says so
  }
  bytes += std::ssize(content);
  return ++looked_at < kMostPictures && bytes < kMostBytes;
}

std::vector<std::string> PictureTally::describe(const DecodeOptions& options) const {
  std::vector<std::string> lines;
  if (transparent > 0 && !options.ground && !options.keep_alpha) {
    lines.push_back(counted(transparent, "picture is", "pictures are") +
                    " transparent in part: training sees the colours stored there, often black; "
                    "data.ground or `shards make --ground` lays them on a colour");
  }
  if (rotated > 0 && !options.apply_exif) {
    lines.push_back(counted(rotated, "picture carries", "pictures carry") +
                    " a rotation (EXIF): data.apply_exif turns them upright. It is true by default "
                    "only with data.folder of a decoder or a CLIP");
  }
  if (deep_grey > 0 && options.range == 0) {
    std::string line = counted(deep_grey, "picture is", "pictures are") + " grey with 16 bits";
    if (needs_range()) {
      line += fmt::format(
          ": the largest value is {}, and 65,535 becomes white, so they are almost black; set "
          "data.range to {} or to the largest value that the camera stores",
          with_commas(grey_largest),
          grey_largest);
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace dalle2
