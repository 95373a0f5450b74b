// SPDX-License-Identifier: MIT
// Reading a demo picture back: ground from the border, colour from the core of what differs from
// it, place from the centroid, size and shape from the best overlap with drawings.
#include "base/error.h"
#include "demo/demo_images.h"

#include <opencv2/imgproc.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace dalle2 {
namespace {

double square_distance(const DemoColour& a, const DemoColour& b) {
  double sum = 0;
  for (size_t c = 0; c < 3; ++c) sum += (a[c] - b[c]) * (a[c] - b[c]);
  return sum;
}

int nearest_ground(const DemoColour& colour) {
  const auto nearest = std::ranges::min_element(
      kDemoGroundValues, {}, [&](const auto& value) { return square_distance(colour, value); });
  return static_cast<int>(nearest - kDemoGroundValues.begin());
}

/// How far a pixel lies on the way from the ground to a colour: 0 there, 1 here.
double share_of(const DemoColour& pixel, const DemoColour& ground, const DemoColour& colour) {
  double dot = 0;
  for (size_t c = 0; c < 3; ++c) dot += (pixel[c] - ground[c]) * (colour[c] - ground[c]);
  return dot / std::max(square_distance(ground, colour), 1.0);
}

/// What a hundredth of the values exceed. The smallest shape covers 3 % of a picture, so this is
/// its core.
double upper_hundredth(std::vector<double> values) {
  const auto place =
      values.end() - static_cast<std::ptrdiff_t>(std::max<size_t>(values.size() / 100, 3));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

/// The median of each channel. @param pixels not empty
DemoColour median_colour(const std::vector<DemoColour>& pixels) {
  DemoColour median{};
  std::vector<double> values(pixels.size());
  for (size_t c = 0; c < 3; ++c) {
    std::ranges::transform(pixels, values.begin(), [c](const DemoColour& p) { return p[c]; });
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    median[c] = *middle;
  }
  return median;
}

/// The picture as colours, slightly smoothed against noise.
cv::Mat3f smoothed(const Image& image) {
  const cv::Mat bytes(
      image.height, image.width, CV_8UC3, const_cast<uint8_t*>(image.pixels.data()));
  cv::Mat3f exact, smooth;
  bytes.convertTo(exact, CV_32FC3);
  cv::GaussianBlur(exact, smooth, cv::Size(3, 3), 0.6, 0.6, cv::BORDER_REPLICATE);
  return smooth;
}

DemoColour colour_at(const cv::Mat3f& picture, int y, int x) {
  const cv::Vec3f& pixel = picture(y, x);
  return {pixel[0], pixel[1], pixel[2]};
}

DemoColour ground_of(const cv::Mat3f& picture) {
  std::vector<DemoColour> border;
  for (int i = 0; i < picture.rows; ++i) {
    for (const auto& [y, x] :
         {std::pair{0, i}, {picture.rows - 1, i}, {i, 0}, {i, picture.cols - 1}}) {
      border.push_back(colour_at(picture, y, x));
    }
  }
  return median_colour(border);
}

/// The median colour of what differs most from the ground; none if nothing really differs.
std::optional<DemoColour> core_colour(const cv::Mat3f& picture, const DemoColour& ground) {
  constexpr double kLeastDistance = 40;  // of 441; the palette is at least 115 from every ground
  std::vector<double> distances;
  for (int y = 0; y < picture.rows; ++y) {
    for (int x = 0; x < picture.cols; ++x) {
      distances.push_back(std::sqrt(square_distance(colour_at(picture, y, x), ground)));
    }
  }
  const double high = upper_hundredth(distances);
  if (high < kLeastDistance) return std::nullopt;
  std::vector<DemoColour> core;
  for (size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] >= 0.8 * high) {
      core.push_back(colour_at(
          picture, static_cast<int>(i) / picture.cols, static_cast<int>(i) % picture.cols));
    }
  }
  return median_colour(core);
}

/// The palette's colour from which `core` comes by mixing in at most half of the ground: blur thins
/// what is as narrow as a ring.
int unmixed_colour(const DemoColour& core, const DemoColour& ground) {
  int nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < kDemoColourValues.size(); ++i) {
    const DemoColour& colour = kDemoColourValues[i];
    const double share = std::clamp(share_of(core, ground, colour), 0.5, 1.0);
    DemoColour mixed;
    for (size_t c = 0; c < 3; ++c) mixed[c] = ground[c] + share * (colour[c] - ground[c]);
    if (const double distance = square_distance(core, mixed); distance < least) {
      least = distance;
      nearest = static_cast<int>(i);
    }
  }
  return nearest;
}

/// Scales the shape's core to 1, so that pictures and drawings compare whatever their blur and
/// contrast.
void normalise(cv::Mat1f& coverage) {
  const double high = upper_hundredth(std::vector<double>(coverage.begin(), coverage.end()));
  for (float& value : coverage) {
    const double scaled = value / std::max(high, 1e-6);
    value = static_cast<float>(scaled < 0.15 ? 0.0 : std::min(scaled, 1.0));  // noise is no shape
  }
}

/// How far each pixel lies on the way from the ground to the colour, 0 to 1.
cv::Mat1f coverage_of(const cv::Mat3f& picture,
                      const DemoColour& ground,
                      const DemoColour& colour) {
  cv::Mat1f coverage(picture.rows, picture.cols);
  for (int y = 0; y < picture.rows; ++y) {
    for (int x = 0; x < picture.cols; ++x) {
      coverage(y, x) = static_cast<float>(share_of(colour_at(picture, y, x), ground, colour));
    }
  }
  normalise(coverage);
  return coverage;
}

/// As parts of the side.
DemoPoint centroid_of(const cv::Mat1f& coverage) {
  const cv::Moments moments = cv::moments(coverage);
  if (moments.m00 <= 0) return {0.5, 0.5};
  return {(moments.m10 / moments.m00 + 0.5) / coverage.cols,
          (moments.m01 / moments.m00 + 0.5) / coverage.rows};
}

int nearest_place(DemoPoint centroid) {
  const auto distance = [&](const DemoPoint& place) {
    return std::hypot(place.x - centroid.x, place.y - centroid.y);
  };
  const auto nearest = std::ranges::min_element(kDemoPlaceCentres, {}, distance);
  return static_cast<int>(nearest - kDemoPlaceCentres.begin());
}

/// Sum of the smaller over sum of the larger values, 1 for the same.
double overlap(const cv::Mat1f& a, const cv::Mat1f& b) {
  double smaller = 0, larger = 0;
  for (auto x = a.begin(), y = b.begin(); x != a.end(); ++x, ++y) {
    smaller += std::min(*x, *y);
    larger += std::max(*x, *y);
  }
  return larger > 0 ? smaller / larger : 0;
}

void find_shape(const cv::Mat1f& coverage, DemoPoint centroid, DemoReading& reading) {
  constexpr int kOversampling = 4;
  const int side = coverage.rows;
  for (int size = 0; size < static_cast<int>(kDemoSizes.size()); ++size) {
    for (int shape = 0; shape < static_cast<int>(kDemoShapes.size()); ++shape) {
      for (const double scale : {0.9, 1.0, 1.1}) {
        const double diameter = kDemoDiameters[static_cast<size_t>(size)] * scale;
        const DemoPoint centre{centroid.x, centroid.y - centroid_drop(shape) * diameter};
        const cv::Mat1f crisp = draw_coverage(shape, diameter, centre, side, kOversampling);
        for (const double blur : {0.015, 0.03, 0.045}) {  // sigma, as a part of the side
          cv::Mat1f drawing;
          cv::GaussianBlur(crisp, drawing, cv::Size(0, 0), blur * side, 0, cv::BORDER_REPLICATE);
          normalise(drawing);
          const double match = overlap(coverage, drawing);
          if (match > reading.shape_match) {
            reading.shape_match = match;
            reading.attributes.shape = shape;
            reading.attributes.size = size;
          }
        }
      }
    }
  }
}

}  // namespace

DemoReading analyse_demo_image(const Image& image) {
  D2_CHECK(image.width == image.height && image.width >= 8,
           "a demo picture of {}x{}",
           image.width,
           image.height);
  const cv::Mat3f picture = smoothed(image);
  const DemoColour ground = ground_of(picture);
  DemoReading reading;
  reading.attributes = {-1, -1, -1, -1, nearest_ground(ground)};
  const std::optional<DemoColour> core = core_colour(picture, ground);
  if (!core) return reading;
  const cv::Mat1f coverage = coverage_of(picture, ground, *core);
  const DemoPoint centroid = centroid_of(coverage);
  reading.attributes.colour = unmixed_colour(*core, ground);
  reading.attributes.place = nearest_place(centroid);
  find_shape(coverage, centroid, reading);
  return reading;
}

}  // namespace dalle2
