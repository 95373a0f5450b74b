// SPDX-License-Identifier: MIT
#include "io/pictures/image_caption.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace dalle2::test {
namespace {

/// Whether a pixel in rows [top, bottom) is lit.
bool is_lit(const Image& image, int top, int bottom) {
  const auto row = [&](int y) {
    return image.pixels.begin() + static_cast<std::ptrdiff_t>(y) * image.width * 3;
  };
  return std::any_of(row(top), row(bottom), [](uint8_t value) { return value > 100; });
}

}  // namespace

TEST_CASE("a caption is drawn in ASCII, without accents, or not at all") {
  CHECK(drawable_text("a red circle") == "a red circle");
  CHECK(drawable_text(
            "Caf\u00e9 Z\u00fcrich, \u201cgro\u00df\u201d \u2013 \u0141\u00f3d\u017a\u2026") ==
        "Cafe Zurich, \"gross\" - Lodz...");
  CHECK(drawable_text("a tab\tand a line\nbreak") == "a tab and a line break");
  CHECK(drawable_text("a red \U0001F600") == "a red ?");
  CHECK(drawable_text("\u8d64\u3044\u5186") == "");
  CHECK(drawable_text("\u043a\u0440\u0430\u0441\u043d\u044b\u0439 o") == "");
  CHECK(drawable_text("") == "");
}

TEST_CASE("a caption is broken between words, and cut with an ellipsis") {
  const CaptionStyle style{.width = 128, .most_lines = 3};
  using Lines = std::vector<std::string>;
  CHECK(caption_lines("a red ring", style) == Lines{"a red ring"});
  CHECK(caption_lines("  a   red ring ", style) == Lines{"a red ring"});
  CHECK(caption_lines("", style).empty());
  const Lines two = caption_lines("a large red circle on the left", style);
  REQUIRE(two.size() == 2);
  CHECK(two[0] + " " + two[1] == "a large red circle on the left");
  const Lines cut = caption_lines(
      "a large red circle on the left of a small blue ring, seen from above on white ground",
      style);
  REQUIRE(cut.size() == 3);
  CHECK(cut[2].ends_with("..."));
  CHECK(cut[1].ends_with("...") == false);
  const Lines word = caption_lines("Donaudampfschifffahrtsgesellschaft", style);
  REQUIRE(word.size() == 2);
  CHECK(word[0] + word[1] == "Donaudampfschifffahrtsgesellschaft");
  CHECK(caption_lines("a word", {.width = 1}).size() == 3);  // a letter a line, too wide
}

TEST_CASE("the letters of a caption lie in its lines and in no others") {
  const CaptionStyle style{.width = 128};
  const int line = caption_line_height(style);
  const Image image = draw_caption({"a red", "gypsy ring"}, style, 3 * line);
  CHECK(image.width == 128);
  CHECK(image.height == 3 * line);
  CHECK(is_lit(image, 0, line));
  CHECK(is_lit(image, line, 2 * line));
  CHECK_FALSE(is_lit(image, 2 * line, 3 * line));
  // Wide pictures have larger letters.
  CHECK(caption_line_height({.width = 1024}) > 2 * line);
}

}  // namespace dalle2::test
