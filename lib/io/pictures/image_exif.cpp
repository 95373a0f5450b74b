// SPDX-License-Identifier: MIT
// EXIF orientation as Pillow's ImageOps.exif_transpose finds and applies it.
#include "io/pictures/image_codecs.h"

#include <cstring>
#include <optional>
#include <string_view>

namespace dalle2 {
namespace {

using namespace std::string_view_literals;

uint64_t read_number(std::string_view bytes, size_t at, size_t size, bool big_endian) {
  uint64_t number = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t place = big_endian ? i : size - 1 - i;
    number = number << 8 | static_cast<unsigned char>(bytes[at + place]);
  }
  return number;
}

/// The text after the next marker or chunk; none if the file ends within it.
std::optional<std::string_view> part(std::string_view bytes, size_t at, uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) return std::nullopt;
  return bytes.substr(at, static_cast<size_t>(size));
}

/// What may tell the orientation.
struct Metadata {
  std::string exif;  ///< a TIFF file
  std::string xmp;
};

constexpr std::string_view kExifStart = "Exif\0\0"sv;

Metadata jpeg_metadata(std::string_view bytes) {
  constexpr std::string_view kXmpStart = "http://ns.adobe.com/xap/1.0/\0"sv;
  constexpr unsigned char kStartOfScan = 0xda, kApp1 = 0xe1;
  Metadata metadata;
  for (size_t at = 2; at + 4 <= bytes.size() && bytes[at] == '\xff';) {
    const unsigned char marker = static_cast<unsigned char>(bytes[at + 1]);
    if (marker == 0xff) {  // padding
      ++at;
      continue;
    }
    const uint64_t size = read_number(bytes, at + 2, 2, true);
    const auto body = part(bytes, at + 4, size < 2 ? 0 : size - 2);
    if (marker == kStartOfScan || size < 2 || !body) break;
    if (marker == kApp1 && body->starts_with(kExifStart)) {
      metadata.exif += body->substr(kExifStart.size());
    } else if (marker == kApp1 && body->starts_with(kXmpStart)) {
      metadata.xmp = body->substr(kXmpStart.size());
    }
    at += 2 + static_cast<size_t>(size);
  }
  return metadata;
}

/// Chunks of a name of four letters and a size of 32 bits, PNG's and RIFF's.
template <class Visit>
void visit_chunks(std::string_view bytes, size_t begin, bool png, const Visit& visit) {
  for (size_t at = begin; at + 8 <= bytes.size();) {
    const uint64_t size = read_number(bytes, png ? at : at + 4, 4, png);
    const auto body = part(bytes, at + 8, size);
    if (!body) break;
    visit(bytes.substr(png ? at + 4 : at, 4), *body);
    at += 8 + static_cast<size_t>(size) + (png ? 4 : size % 2);  // a checksum, or an even size
  }
}

Metadata chunk_metadata(std::string_view bytes, size_t begin, bool png) {
  Metadata metadata;
  visit_chunks(bytes, begin, png, [&](std::string_view name, std::string_view body) {
    if (name == (png ? "eXIf"sv : "EXIF"sv)) {
      metadata.exif = body.substr(body.starts_with(kExifStart) ? kExifStart.size() : 0);
    } else if (!png && name == "XMP "sv) {
      metadata.xmp = body;
    }
  });
  return metadata;
}

/// Tag 0x0112 of the first directory of a TIFF file.
std::optional<uint64_t> tiff_orientation(std::string_view tiff) {
  constexpr uint64_t kOrientation = 0x0112, kShort = 3, kLong = 4;
  const bool big_endian = tiff.starts_with("MM"sv);
  if (tiff.size() < 8 || (!big_endian && !tiff.starts_with("II"sv))) return std::nullopt;
  const size_t directory = static_cast<size_t>(read_number(tiff, 4, 4, big_endian));
  if (!part(tiff, directory, 2)) return std::nullopt;
  const uint64_t entries = read_number(tiff, directory, 2, big_endian);
  for (uint64_t i = 0; i < entries; ++i) {
    const auto entry = part(tiff, directory + 2 + 12 * static_cast<size_t>(i), 12);
    if (!entry) break;
    const uint64_t type = read_number(*entry, 2, 2, big_endian);
    if (read_number(*entry, 0, 2, big_endian) == kOrientation &&
        (type == kShort || type == kLong) && read_number(*entry, 4, 4, big_endian) == 1) {
      return read_number(*entry, 8, type == kShort ? 2 : 4, big_endian);
    }
  }
  return std::nullopt;
}

/// tiff:Orientation="6" or <tiff:Orientation>6<.
std::optional<uint64_t> xmp_orientation(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (size_t at = xmp.find(kName); at != std::string_view::npos; at = xmp.find(kName, at + 1)) {
    const std::string_view rest = xmp.substr(at + kName.size());
    const size_t digit = rest.starts_with("=\""sv) ? 2 : rest.starts_with(">"sv) ? 1 : 0;
    if (digit > 0 && rest.size() > digit && rest[digit] >= '0' && rest[digit] <= '9') {
      return static_cast<uint64_t>(rest[digit] - '0');
    }
  }
  return std::nullopt;
}

}  // namespace

int exif_orientation(const std::string& content) {
  const std::string_view bytes(content);
  Metadata metadata;
  if (bytes.starts_with("\xff\xd8"sv)) {
    metadata = jpeg_metadata(bytes);
  } else if (bytes.starts_with("\x89PNG"sv)) {
    metadata = chunk_metadata(bytes, 8, /*png=*/true);
  } else if (bytes.starts_with("RIFF"sv)) {
    metadata = chunk_metadata(bytes, 12, /*png=*/false);
  }
  std::optional<uint64_t> orientation = tiff_orientation(metadata.exif);
  if (!orientation) orientation = xmp_orientation(metadata.xmp);
  return orientation && *orientation >= 1 && *orientation <= 8 ? static_cast<int>(*orientation) : 1;
}

Image turned(const Image& image, int orientation) {
  if (!image.alpha.empty()) {
    return change_with_alpha(
        image, /*blends=*/false, [&](const Image& part) { return turned(part, orientation); });
  }
  const int width = image.width, height = image.height;
  const bool swaps = orientation >= 5;
  const bool mirrors_x =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirrors_y =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image out{swaps ? height : width, swaps ? width : height, {}};
  out.pixels.resize(image.pixels.size());
  uint8_t* to = out.pixels.data();
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x, to += 3) {
      const int stored_x = swaps ? y : x, stored_y = swaps ? x : y;
      const size_t column = static_cast<size_t>(mirrors_x ? width - 1 - stored_x : stored_x);
      const size_t row = static_cast<size_t>(mirrors_y ? height - 1 - stored_y : stored_y);
      std::memcpy(to, image.pixels.data() + 3 * (row * static_cast<size_t>(width) + column), 3);
    }
  }
  return out;
}

}  // namespace dalle2
