// SPDX-License-Identifier: MIT
// The last transform: pixels to planes of floats.
#pragma once

#include "io/pictures/image.h"

namespace dalle2 {

/// ToTensor: [height, width, 3] bytes to [3, height, width] floats, value / 255.
/// @param out room for 3 * height * width floats
void write_planes(const Image& image, float* out);

}  // namespace dalle2
