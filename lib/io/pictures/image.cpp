// SPDX-License-Identifier: MIT
#include "io/pictures/image.h"

#include <opencv2/imgproc.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "io/files/atomic_file.h"
#include "io/pictures/image_codecs.h"

namespace dalle2 {
namespace {

/// The picture's own pixels. OpenCV has no constant ones.
cv::Mat3b pixels_of(const Image& image) {
  auto* const pixels = const_cast<uint8_t*>(image.pixels.data());
  return {image.height, image.width, reinterpret_cast<cv::Vec3b*>(pixels)};
}

cv::Mat1b lightness_of(const cv::Mat3b& pixels) {
  cv::Mat1b lightness;
  cv::cvtColor(pixels, lightness, cv::COLOR_RGB2GRAY);
  return lightness;
}

}  // namespace

void check_image_size(int64_t width, int64_t height, const std::string& origin) {
  constexpr int64_t kLargestSide = 1'000'000;  // a libpng limit, held for all formats
  if (width <= 0 || height <= 0) {
    throw DataError("{}: a picture of {}x{} pixels", origin, width, height);
  }
  if (width > kLargestSide || height > kLargestSide || width * height > kMostImagePixels) {
    throw DataError(
        "{}: a picture of {}x{} pixels; at most {} pixels are read (decompression bomb?)",
        origin,
        width,
        height,
        kMostImagePixels);
  }
}

Image flip_horizontally(const Image& image) {
  return turned(image, /*orientation=*/2);
}

Image turned(const Image& image, int orientation) {
  if (!image.alpha.empty()) {
    return change_with_alpha(
        image, /*blends=*/false, [&](const Image& part) { return turned(part, orientation); });
  }
  const bool swaps = orientation >= 5;
  Image out{swaps ? image.height : image.width, swaps ? image.width : image.height, {}};
  out.pixels.resize(image.pixels.size());
  const cv::Mat3b stored = pixels_of(image), target = pixels_of(out);
  const bool in_x = mirrors_x(orientation), in_y = mirrors_y(orientation);
  cv::Mat3b mirrored = swaps ? cv::Mat3b() : target;
  if (in_x || in_y) {
    cv::flip(stored, mirrored, !in_y ? 1 : !in_x ? 0 : -1);
  } else {
    stored.copyTo(mirrored);
  }
  if (swaps) cv::transpose(mirrored, target);
  return out;
}

void check_box(const CropBox& box, int width, int height) {
  D2_CHECK(box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 &&
               box.left + box.width <= width && box.top + box.height <= height,
           "box {}x{} at ({}, {}) of a {}x{} picture",
           box.width,
           box.height,
           box.left,
           box.top,
           width,
           height);
}

Image crop(const Image& image, const CropBox& box, uint8_t outside) {
  if (!image.alpha.empty()) {
    return change_with_alpha(
        image, /*blends=*/false, [&](const Image& part) { return crop(part, box, outside); });
  }
  const cv::Rect wanted(box.left, box.top, box.width, box.height);
  Image result{box.width, box.height, {}};
  result.pixels.resize(3 * static_cast<size_t>(box.width) * static_cast<size_t>(box.height),
                       outside);
  const cv::Rect inside = wanted & cv::Rect(0, 0, image.width, image.height);
  if (!inside.empty()) pixels_of(image)(inside).copyTo(pixels_of(result)(inside - wanted.tl()));
  return result;
}

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

void split_colours(const Image& image, uint8_t* planes) {
  cv::Mat parts[3];
  for (cv::Mat& part : parts) {
    part = cv::Mat1b(image.height, image.width, planes);
    planes += part.total();
  }
  cv::split(pixels_of(image), parts);
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

void write_png(const std::string& path, const Image& image) {
  write_file_atomically(path, encode_png(image));
}

void adjust_brightness(Image& image, double factor) {
  const cv::Mat3b pixels = pixels_of(image);
  pixels.convertTo(pixels, -1, factor);
}

void adjust_contrast(Image& image, double factor) {
  const cv::Mat3b pixels = pixels_of(image);
  const double mean = std::floor(cv::mean(lightness_of(pixels))[0] + 0.5);
  pixels.convertTo(pixels, -1, factor, (1 - factor) * mean);
}

void adjust_saturation(Image& image, double factor) {
  const cv::Mat3b pixels = pixels_of(image);
  cv::Mat3b grey;
  cv::cvtColor(lightness_of(pixels), grey, cv::COLOR_GRAY2RGB);
  cv::addWeighted(pixels, factor, grey, 1 - factor, 0, pixels);
}

void adjust_hue(Image& image, double turn) {
  const cv::Mat3b pixels = pixels_of(image);
  // In float: of 8 bits a circle of hues keeps only 256, and turning it would show.
  cv::Mat3f hsv;
  pixels.convertTo(hsv, CV_32FC3, 1.0 / 255);
  cv::cvtColor(hsv, hsv, cv::COLOR_RGB2HSV);
  for (cv::Vec3f& pixel : hsv) {
    pixel[0] = static_cast<float>(std::fmod(pixel[0] + 360 * (turn + 1), 360.0));
  }
  cv::cvtColor(hsv, hsv, cv::COLOR_HSV2RGB);
  hsv.convertTo(pixels, CV_8UC3, 255);
}

Image rotate(Image image, double degrees, Interpolation mode, const std::array<double, 3>& fill) {
  D2_CHECK(mode == Interpolation::kNearest || mode == Interpolation::kBilinear,
           "pictures are turned by nearest or bilinear interpolation");
  if (!image.alpha.empty()) {  // what comes from outside is transparent, unless it has a colour
    const double outside = fill == std::array<double, 3>{} ? 0 : 255;
    std::array<double, 3> next_fill = fill;
    return change_with_alpha(image, mode != Interpolation::kNearest, [&](const Image& part) {
      return rotate(part, degrees, mode, std::exchange(next_fill, {outside, outside, outside}));
    });
  }
  Image rotated{image.width, image.height, std::vector<uint8_t>(image.pixels.size())};
  // Pixels lie at whole coordinates here, so the middle of the picture lies half a pixel before.
  const cv::Point2f middle(static_cast<float>(image.width - 1) / 2,
                           static_cast<float>(image.height - 1) / 2);
  const cv::Mat3b target = pixels_of(rotated);
  cv::warpAffine(pixels_of(image),
                 target,
                 cv::getRotationMatrix2D(middle, degrees, 1),
                 target.size(),
                 mode == Interpolation::kNearest ? cv::INTER_NEAREST : cv::INTER_LINEAR,
                 cv::BORDER_CONSTANT,
                 cv::Scalar(fill[0], fill[1], fill[2]));
  return rotated;
}

}  // namespace dalle2
