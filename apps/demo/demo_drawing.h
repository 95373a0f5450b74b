// SPDX-License-Identifier: MIT
// What drawing and reading the demo set share. Internal to apps/demo.
#pragma once

#include "demo/demo_images.h"

#include <opencv2/core.hpp>

namespace dalle2 {

using DemoColour = std::array<double, 3>;  // R, G, B, 0 to 255

inline constexpr std::array<DemoColour, kDemoColours.size()> kDemoColourValues = {{
    {215, 35, 35},
    {35, 155, 60},
    {40, 65, 220},
    {250, 210, 40},
    {165, 45, 205},
    {35, 195, 220},
}};
inline constexpr std::array<DemoColour, kDemoGrounds.size()> kDemoGroundValues = {{
    {255, 255, 255},
    {128, 128, 128},
    {0, 0, 0},
}};

/// Parts of the side.
struct DemoPoint {
  double x, y;
};
inline constexpr std::array<DemoPoint, kDemoPlaces.size()> kDemoPlaceCentres = {{
    {0.26, 0.5},
    {0.74, 0.5},
    {0.5, 0.26},
    {0.5, 0.74},
    {0.5, 0.5},
}};
inline constexpr std::array<double, kDemoSizes.size()> kDemoDiameters = {0.28, 0.44};

/// How much of each pixel the shape covers: [side, side] float, 0 to 1.
/// @param diameter of the shape's extent, @param centre of it; parts of the side
/// @param oversampling drawn that much larger and averaged down
cv::Mat1f draw_coverage(int shape, double diameter, DemoPoint centre, int side, int oversampling);

/// How far the centroid of a shape lies below its centre, in diameters.
double centroid_drop(int shape);

}  // namespace dalle2
