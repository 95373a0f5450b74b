// SPDX-License-Identifier: MIT
#include "io/pictures/image_adjust.h"

#include <opencv2/imgproc.hpp>

#include <cmath>
#include <utility>

#include "base/error.h"
#include "io/pictures/image_codecs.h"

namespace dalle2 {
namespace {

/// The picture's own pixels.
cv::Mat3b pixels_of(Image& image) {
  return {image.height, image.width, reinterpret_cast<cv::Vec3b*>(image.pixels.data())};
}

cv::Mat1b lightness_of(const cv::Mat3b& pixels) {
  cv::Mat1b lightness;
  cv::cvtColor(pixels, lightness, cv::COLOR_RGB2GRAY);
  return lightness;
}

}  // namespace

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
  Image turned{image.width, image.height, std::vector<uint8_t>(image.pixels.size())};
  // Pixels lie at whole coordinates here, so the middle of the picture lies half a pixel before.
  const cv::Point2f middle(static_cast<float>(image.width - 1) / 2,
                           static_cast<float>(image.height - 1) / 2);
  const cv::Mat3b target = pixels_of(turned);
  cv::warpAffine(pixels_of(image),
                 target,
                 cv::getRotationMatrix2D(middle, degrees, 1),
                 target.size(),
                 mode == Interpolation::kNearest ? cv::INTER_NEAREST : cv::INTER_LINEAR,
                 cv::BORDER_CONSTANT,
                 cv::Scalar(fill[0], fill[1], fill[2]));
  return turned;
}

}  // namespace dalle2
