// SPDX-License-Identifier: MIT
#include "io/pictures/image_caption.h"

#include <opencv2/imgproc.hpp>

#include <algorithm>
#include <array>
#include <sstream>
#include <utility>

#include "io/text/unicode.h"

namespace dalle2 {
namespace {

constexpr const char* kCut = "...";

/// What has no decomposition into ASCII, but is often written in it.
constexpr std::array<std::pair<char32_t, const char*>, 20> kInAscii = {
    {{U'\u2018', "'"},  {U'\u2019', "'"},  {U'\u201C', "\""}, {U'\u201D', "\""}, {U'\u201E', "\""},
     {U'\u00AB', "\""}, {U'\u00BB', "\""}, {U'\u2010', "-"},  {U'\u2013', "-"},  {U'\u2014', "-"},
     {U'\u00DF', "ss"}, {U'\u00E6', "ae"}, {U'\u00C6', "AE"}, {U'\u0153', "oe"}, {U'\u00F8', "o"},
     {U'\u00D8', "O"},  {U'\u0142', "l"},  {U'\u0141', "L"},  {U'\u0131', "i"},  {U'\u00D7', "x"}}};

bool is_accent(char32_t c) {
  return c >= U'\u0300' && c <= U'\u036F';
}

double scale_of(const CaptionStyle& style) {
  constexpr double kSmallest = 0.35, kWidthOfSmallest = 384;  // 8 pixels high
  return kSmallest * std::max(1.0, style.width / kWidthOfSmallest);
}

int width_of(const std::string& text, const CaptionStyle& style) {
  int below = 0;
  return cv::getTextSize(text, cv::FONT_HERSHEY_SIMPLEX, scale_of(style), 1, &below).width;
}

bool fits(const std::string& text, const CaptionStyle& style) {
  return width_of(text, style) <= style.width;
}

/// A word in parts that fit, but for single characters.
std::vector<std::string> parts_of(const std::string& word, const CaptionStyle& style) {
  std::vector<std::string> parts = {""};
  for (const char c : word) {
    if (!parts.back().empty() && !fits(parts.back() + c, style)) parts.emplace_back();
    parts.back() += c;
  }
  return parts;
}

}  // namespace

std::string drawable_text(const std::string& text) {
  std::string ascii;
  size_t drawn = 0, unknown = 0;
  for (const char32_t c : nfkd(code_points(text))) {
    const auto other =
        std::ranges::find_if(kInAscii, [&](const auto& entry) { return entry.first == c; });
    if (is_accent(c)) continue;
    if (is_white_space(c)) {
      ascii += ' ';
    } else if (other != kInAscii.end()) {
      ascii += other->second;
      ++drawn;
    } else if (c > U' ' && c < U'\u007F') {
      ascii += static_cast<char>(c);
      ++drawn;
    } else {
      ascii += '?';
      ++unknown;
    }
  }
  return unknown > drawn ? "" : ascii;
}

std::vector<std::string> caption_lines(const std::string& text, const CaptionStyle& style) {
  std::vector<std::string> lines;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (!lines.empty() && fits(lines.back() + ' ' + word, style)) {
      lines.back() += ' ' + word;
      continue;
    }
    for (std::string& part : parts_of(word, style)) lines.push_back(std::move(part));
  }
  const auto most = static_cast<size_t>(style.most_lines);
  if (lines.size() <= most) return lines;
  lines.resize(most);
  std::string& last = lines.back();
  while (!last.empty() && !fits(last + kCut, style)) last.pop_back();
  while (last.ends_with(' ')) last.pop_back();
  last += kCut;
  return lines;
}

int caption_line_height(const CaptionStyle& style) {
  constexpr double kLineHeight = 40;  // of the font at scale 1
  return static_cast<int>(kLineHeight * scale_of(style));
}

Image draw_caption(const std::vector<std::string>& lines, const CaptionStyle& style, int height) {
  constexpr double kBaseline = 28;  // below the top of a line, at scale 1
  Image image{.width = style.width, .height = height, .pixels = {}};
  image.pixels.assign(static_cast<size_t>(style.width) * static_cast<size_t>(height) * 3, 0);
  cv::Mat3b pixels(height, style.width, reinterpret_cast<cv::Vec3b*>(image.pixels.data()));
  int top = 0;
  for (const std::string& line : lines) {
    const int left = std::max(0, (style.width - width_of(line, style)) / 2);
    const cv::Point baseline(left, top + static_cast<int>(kBaseline * scale_of(style)));
    cv::putText(pixels,
                line,
                baseline,
                cv::FONT_HERSHEY_SIMPLEX,
                scale_of(style),
                cv::Scalar(255, 255, 255),
                1,
                cv::LINE_AA);
    top += caption_line_height(style);
  }
  return image;
}

}  // namespace dalle2
