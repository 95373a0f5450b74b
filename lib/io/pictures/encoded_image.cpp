// SPDX-License-Identifier: MIT
// From a file's bytes to the pixels of a crop, with no more decoding than that takes.
#include "base/error.h"
#include "io/pictures/image.h"
#include "io/pictures/image_codecs.h"
#include "io/pictures/resample.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace dalle2 {
namespace {

/// A box of the shown picture in the stored one (or, given the stored one's sides and the inverse
/// orientation, the other way round).
/// @param width, height of the picture that the result lies in
RealBox stored_box(const RealBox& box, int orientation, double width, double height) {
  RealBox to = box;
  if (orientation >= 5) to = {box.top, box.left, box.height, box.width};
  if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) {
    to.left = width - to.left - to.width;
  }
  if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {
    to.top = height - to.top - to.height;
  }
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

void EncodedImage::check(const CropBox& box) const {
  D2_CHECK(box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 &&
               box.left + box.width <= width_ && box.top + box.height <= height_,
           "box {}x{} at ({}, {}) of a {}x{} picture",
           box.width,
           box.height,
           box.left,
           box.top,
           width_,
           height_);
}

Image EncodedImage::crop(const CropBox& box) {
  check(box);
  if (!jpeg_) {
    const bool whole = box.width == width_ && box.height == height_;
    return whole ? std::move(decoded_)
                 : dalle2::crop(decoded_, box.left, box.top, box.width, box.height);
  }
  const RealBox stored = stored_box(real(box), orientation_, jpeg_->width(), jpeg_->height());
  Image image = read_box(*jpeg_, touched(stored), 1);
  return orientation_ == 1 ? image : turned(image, orientation_);
}

Image EncodedImage::crop_resize(const CropBox& box,
                                int out_width,
                                int out_height,
                                Interpolation mode) {
  check(box);
  if (!jpeg_) {
    return dalle2::crop_resize(
        decoded_, box.left, box.top, box.width, box.height, out_width, out_height, mode);
  }
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
  const std::vector<uint8_t> alpha = image.crop({0, 0, image.width(), image.height()}).alpha;
  PictureFacts facts = image.facts();
  facts.transparent = std::any_of(alpha.begin(), alpha.end(), [](uint8_t a) { return a != 255; });
  facts.orientation = exif_orientation(content);
  if (facts.orientation >= 5) std::swap(facts.width, facts.height);
  return facts;
}

}  // namespace dalle2
