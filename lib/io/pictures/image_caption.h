// SPDX-License-Identifier: MIT
// Words under pictures, by the strokes that OpenCV has for ASCII.
#pragma once

#include <string>
#include <vector>

#include "io/pictures/image.h"

namespace dalle2 {

/// A text by the characters that can be drawn, ASCII's: accents are dropped, and what remains is a question
/// mark. @return empty if these would be more than half
std::string drawable_text(const std::string& text);

struct CaptionStyle {
  int width = 0;  ///< pixels
  int most_lines = 3;
};

/// A drawable text in lines of that width, broken between words where that is possible. What does not fit
/// is cut, and "..." says so.
std::vector<std::string> caption_lines(const std::string& text, const CaptionStyle& style);
/// Pixels from one line to the next.
int caption_line_height(const CaptionStyle& style);
/// Lines in white on black, from the top. @param lines each as wide as the style or less
/// @param height pixels
Image draw_caption(const std::vector<std::string>& lines, const CaptionStyle& style, int height);

}  // namespace dalle2
