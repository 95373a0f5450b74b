// SPDX-License-Identifier: MIT
// Colours and rotation of pictures, with the meaning of torchvision's adjust_* and rotate. By
// OpenCV, so values differ from Pillow's by rounding.
#pragma once

#include "io/pictures/image.h"

#include <array>

namespace dalle2 {

/// All values times `factor`.
void adjust_brightness(Image& image, double factor);
/// Distance of all values from the picture's mean lightness times `factor`.
void adjust_contrast(Image& image, double factor);
/// Distance of all values from the pixel's lightness times `factor`: 0 is grey.
void adjust_saturation(Image& image, double factor);
/// @param turn part of the circle of hues, -0.5 to 0.5
void adjust_hue(Image& image, double turn);

/// Of the longer side, pixels.
inline constexpr int kMostRotatedSide = 32'766;

/// Turned about its middle, the size unchanged.
/// @param image of at most kMostRotatedSide pixels a side
/// @param degrees counter-clockwise @param mode kNearest or kBilinear
/// @param fill red, green and blue of what comes from outside
Image rotate(Image image, double degrees, Interpolation mode, const std::array<double, 3>& fill);

}  // namespace dalle2
