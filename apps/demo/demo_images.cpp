// SPDX-License-Identifier: MIT
#include "demo/demo_images.h"

#include "base/error.h"

#include <opencv2/imgproc.hpp>

#include <algorithm>
#include <cmath>

namespace dalle2 {
namespace {

constexpr double kTriangleBase = 0.85;  // below the centre, in half diameters; its top is 1 above
constexpr int kFixedBits = 8;           // of OpenCV's fixed-point coordinates

int count_of(const DemoAttribute& attribute) {
  return static_cast<int>(attribute.values.size());
}

/// Points given as parts of the side to the canvas, whose pixel i has its centre at i.
cv::Point on_canvas(double x, double y, int canvas_side) {
  const double one = 1 << kFixedBits;
  return {static_cast<int>(std::lround((x * canvas_side - 0.5) * one)),
          static_cast<int>(std::lround((y * canvas_side - 0.5) * one))};
}

void fill_polygon(cv::Mat1b& canvas, const std::vector<DemoPoint>& corners) {
  std::vector<cv::Point> points;
  for (const DemoPoint& corner : corners) {
    points.push_back(on_canvas(corner.x, corner.y, canvas.rows));
  }
  cv::fillPoly(
      canvas, std::vector<std::vector<cv::Point>>{points}, cv::Scalar(255), cv::LINE_8, kFixedBits);
}

void fill_circle(cv::Mat1b& canvas, DemoPoint centre, double diameter, int value) {
  const double radius = diameter / 2 * canvas.rows * (1 << kFixedBits);
  cv::circle(canvas,
             on_canvas(centre.x, centre.y, canvas.rows),
             static_cast<int>(std::lround(radius)),
             cv::Scalar(value),
             cv::FILLED,
             cv::LINE_8,
             kFixedBits);
}

uint8_t to_byte(double value) {
  return static_cast<uint8_t>(std::lround(std::clamp(value, 0.0, 255.0)));
}

}  // namespace

std::vector<DemoAttributes> demo_combinations() {
  std::vector<DemoAttributes> all = {{}};
  for (const DemoAttribute& attribute : kDemoAttributes) {
    std::vector<DemoAttributes> longer;
    for (const DemoAttributes& attributes : all) {
      for (int value = 0; value < count_of(attribute); ++value) {
        longer.push_back(attributes);
        longer.back().*attribute.member = value;
      }
    }
    all = std::move(longer);
  }
  return all;
}

bool is_held_out(const DemoAttributes& a) {
  int index = 0;  // in demo_combinations
  for (const DemoAttribute& attribute : kDemoAttributes) {
    index = index * count_of(attribute) + a.*attribute.member;
  }
  // 851 is prime to 900, so this is true exactly 64 times; of all such factors it spreads the values
  // and their pairs most evenly.
  return index * 851 % 900 < 64;
}

std::string demo_caption(const DemoAttributes& a) {
  static constexpr std::array<const char*, kDemoPlaces.size()> kWhere = {
      "on the left", "on the right", "at the top", "at the bottom", "in the centre"};
  return fmt::format("a {} {} {} {}, {} ground",
                     kDemoSizes.at(static_cast<size_t>(a.size)),
                     kDemoColours.at(static_cast<size_t>(a.colour)),
                     kDemoShapes.at(static_cast<size_t>(a.shape)),
                     kWhere.at(static_cast<size_t>(a.place)),
                     kDemoGrounds.at(static_cast<size_t>(a.ground)));
}

std::vector<float> demo_embedding(const DemoAttributes& attributes) {
  std::vector<float> embedding(kDemoEmbeddingSize, 0.0F);
  int begin = 0;
  for (const DemoAttribute& attribute : kDemoAttributes) {
    embedding.at(static_cast<size_t>(begin + attributes.*attribute.member)) =
        kDemoEmbeddingStrength;
    begin += count_of(attribute);
  }
  return embedding;
}

cv::Mat1f draw_coverage(int shape, double diameter, DemoPoint centre, int side, int oversampling) {
  cv::Mat1b canvas(side * oversampling, side * oversampling, static_cast<uint8_t>(0));
  const double half = diameter / 2;
  const auto polygon = [&](std::vector<DemoPoint> corners) {
    for (DemoPoint& corner : corners) {
      corner = {centre.x + corner.x * half, centre.y + corner.y * half};
    }
    fill_polygon(canvas, corners);
  };
  constexpr double kArm = 1.0 / 3;
  switch (shape) {
    case 0:
      fill_circle(canvas, centre, diameter, 255);
      break;
    case 1:
      polygon({{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}});
      break;
    case 2:
      polygon({{0, -1}, {1, kTriangleBase}, {-1, kTriangleBase}});
      break;
    case 3:
      polygon({{-1, -kArm}, {1, -kArm}, {1, kArm}, {-1, kArm}});
      polygon({{-kArm, -1}, {kArm, -1}, {kArm, 1}, {-kArm, 1}});
      break;
    default:
      fill_circle(canvas, centre, diameter, 255);
      fill_circle(canvas, centre, diameter * 0.55, 0);
      break;
  }
  cv::Mat1f exact, coverage;
  canvas.convertTo(exact, CV_32F, 1.0 / 255);
  cv::resize(exact, coverage, cv::Size(side, side), 0, 0, cv::INTER_AREA);
  return coverage;
}

double centroid_drop(int shape) {
  return shape == 2 ? (2 * kTriangleBase - 1) / 3 / 2 : 0.0;
}

Image draw_demo_image(const DemoAttributes& a, int side, const DemoVariation& variation) {
  D2_CHECK(side >= 8, "a demo picture of {} pixels", side);
  const DemoPoint place = kDemoPlaceCentres.at(static_cast<size_t>(a.place));
  constexpr int kOversampling = 8;
  const cv::Mat1f coverage =
      draw_coverage(a.shape,
                    kDemoDiameters.at(static_cast<size_t>(a.size)) * variation.scale,
                    {place.x + variation.shift_x, place.y + variation.shift_y},
                    side,
                    kOversampling);
  const DemoColour& ground = kDemoGroundValues.at(static_cast<size_t>(a.ground));
  const DemoColour& colour = kDemoColourValues.at(static_cast<size_t>(a.colour));
  Image image{side, side, {}};
  image.pixels.reserve(3 * coverage.total());
  for (const float covered : coverage) {
    for (size_t c = 0; c < 3; ++c) {
      image.pixels.push_back(to_byte(ground[c] + covered * (colour[c] - ground[c])));
    }
  }
  return image;
}

}  // namespace dalle2
