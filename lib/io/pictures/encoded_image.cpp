// SPDX-License-Identifier: MIT
// From a file's bytes to the pixels of a crop, with no more decoding than that takes.
#include "base/error.h"
#include "io/pictures/image.h"
#include "io/pictures/image_codecs.h"
#include "io/pictures/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <webp/decode.h>

namespace dalle2 {
namespace {

using namespace std::string_view_literals;

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

/// The EXIF orientation, 1 to 8, of a JPEG, PNG or WebP; 1 if there is none. Found and applied as
/// Pillow's ImageOps.exif_transpose does.
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

/// A box of the shown picture in the stored one (or, given the stored one's sides and the inverse
/// orientation, the other way round).
/// @param width, height of the picture that the result lies in
RealBox stored_box(const RealBox& box, int orientation, double width, double height) {
  RealBox to = box;
  if (orientation >= 5) to = {box.top, box.left, box.height, box.width};
  if (mirrors_x(orientation)) to.left = width - to.left - to.width;
  if (mirrors_y(orientation)) to.top = height - to.top - to.height;
  return to;
}

/// A quarter turn to the right is undone by one to the left; all else by itself.
int inverse(int orientation) {
  return orientation == 6 ? 8 : orientation == 8 ? 6 : orientation;
}

RealBox real(const CropBox& box) {
  return {static_cast<double>(box.left),
          static_cast<double>(box.top),
          static_cast<double>(box.width),
          static_cast<double>(box.height)};
}

/// The whole pixels that a box touches.
CropBox touched(const RealBox& box) {
  CropBox whole{
      static_cast<int>(std::floor(box.left)), static_cast<int>(std::floor(box.top)), 0, 0};
  whole.width = static_cast<int>(std::ceil(box.left + box.width)) - whole.left;
  whole.height = static_cast<int>(std::ceil(box.top + box.height)) - whole.top;
  return whole;
}

Image read_box(JpegReader& jpeg, const CropBox& box, int denominator) {
  Image image{box.width, box.height, {}};
  const size_t stride = 3 * static_cast<size_t>(box.width);
  image.pixels.resize(stride * static_cast<size_t>(box.height));
  uint8_t* to = image.pixels.data();
  jpeg.read(box, denominator, [&](const uint8_t* rows, size_t row_stride, int count) {
    for (int y = 0; y < count; ++y, rows += row_stride, to += stride) std::memcpy(to, rows, stride);
  });
  return image;
}

/// The largest of 8, 4, 2, 1 by which the box may shrink and still have the pixels asked for.
int largest_denominator(const CropBox& box, int out_width, int out_height) {
  int denominator = 8;
  while (denominator > 1 &&
         (box.width < out_width * denominator || box.height < out_height * denominator)) {
    denominator /= 2;
  }
  return denominator;
}

/// What is wholly transparent does not count: files often keep colours there that nobody sees.
bool is_grey(const Image& image) {
  for (size_t i = 0; 3 * i < image.pixels.size(); ++i) {
    const uint8_t* pixel = &image.pixels[3 * i];
    const bool is_seen = image.alpha.empty() || image.alpha[i] > 0;
    if (is_seen && (pixel[0] != pixel[1] || pixel[1] != pixel[2])) return false;
  }
  return true;
}

}  // namespace

EncodedImage::EncodedImage(const std::string& content, std::string origin, DecodeOptions options)
    : origin_(std::move(origin)), options_(options) {
  const std::string_view bytes(content);
  DecodeOptions stored = options;
  stored.keep_alpha = options.keep_alpha || options.ground.has_value();
  if (bytes.starts_with("\xff\xd8\xff")) {
    jpeg_ = std::make_unique<JpegReader>(content, origin_);
    width_ = jpeg_->width();
    height_ = jpeg_->height();
    facts_.grey = jpeg_->is_grey();
  } else if (bytes.starts_with("\x89PNG\r\n\x1a\n")) {
    decoded_ = decode_png(content, origin_, stored, facts_);
  } else if (bytes.size() >= 12 && bytes.starts_with("RIFF") && bytes.substr(8, 4) == "WEBP") {
    decoded_ = decode_webp(content, origin_, stored.keep_alpha);
  } else {
    throw DataError("{}: not a picture that can be read ({} bytes); expected JPEG, PNG or WebP",
                    origin_,
                    content.size());
  }
  const int orientation = options.apply_exif ? exif_orientation(content) : 1;
  if (jpeg_) {
    orientation_ = orientation;
    if (orientation >= 5) std::swap(width_, height_);
  } else {
    if (options.ground && !options.keep_alpha) lay_on(decoded_, *options.ground);
    if (orientation != 1) decoded_ = turned(decoded_, orientation);
    width_ = decoded_.width;
    height_ = decoded_.height;
  }
  facts_.width = width_;
  facts_.height = height_;
  facts_.orientation = orientation;
}

EncodedImage::~EncodedImage() = default;

Image EncodedImage::crop(const CropBox& box) {
  check_box(box, width_, height_);
  if (!jpeg_) {
    const bool whole = box.width == width_ && box.height == height_;
    return whole ? std::move(decoded_) : dalle2::crop(decoded_, box);
  }
  const RealBox stored = stored_box(real(box), orientation_, jpeg_->width(), jpeg_->height());
  Image image = read_box(*jpeg_, touched(stored), 1);
  return orientation_ == 1 ? image : turned(image, orientation_);
}

Image EncodedImage::crop_resize(const CropBox& box,
                                int out_width,
                                int out_height,
                                Interpolation mode) {
  check_box(box, width_, height_);
  if (!jpeg_) return dalle2::crop_resize(decoded_, box, out_width, out_height, mode);
  // Where single pixels are picked, others would be.
  const bool scales = options_.fast_jpeg && mode != Interpolation::kNearest;
  const int denominator = scales ? largest_denominator(box, out_width, out_height) : 1;
  RealBox part = stored_box(real(box), orientation_, jpeg_->width(), jpeg_->height());
  for (double* edge : {&part.left, &part.top, &part.width, &part.height}) *edge /= denominator;
  const CropBox pixels = touched(part);
  part.left -= pixels.left;
  part.top -= pixels.top;
  if (orientation_ == 1) {
    Resampler resampler(pixels.width, pixels.height, part, out_width, out_height, mode);
    jpeg_->read(pixels, denominator, [&](const uint8_t* rows, size_t stride, int count) {
      resampler.push(rows, stride, count);
    });
    return resampler.finish();
  }
  const Image upright = turned(read_box(*jpeg_, pixels, denominator), orientation_);
  part = stored_box(part, inverse(orientation_), upright.width, upright.height);
  return resample(
      upright, {0, 0, upright.width, upright.height}, part, out_width, out_height, mode);
}

Image decode_image(const std::string& content, const std::string& origin, DecodeOptions options) {
  EncodedImage image(content, origin, options);
  return image.crop({0, 0, image.width(), image.height()});
}

PictureFacts look_at_picture(const std::string& content, const std::string& origin) {
  EncodedImage image(content, origin, {.keep_alpha = true});
  const Image whole = image.crop({0, 0, image.width(), image.height()});
  PictureFacts facts = image.facts();
  facts.transparent = std::ranges::any_of(whole.alpha, [](uint8_t a) { return a != 255; });
  facts.grey = is_grey(whole);
  facts.orientation = exif_orientation(content);
  if (facts.orientation >= 5) std::swap(facts.width, facts.height);
  return facts;
}

}  // namespace dalle2
