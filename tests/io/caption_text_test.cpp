// SPDX-License-Identifier: MIT
#include "io/text/caption_text.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "io/pictures/image_caption.h"

using namespace dalle2;
using namespace std::string_literals;

namespace {

std::string text_of(const std::string& bytes, const std::string& encoding = "windows-1252") {
  return caption_text(bytes, encoding).text;
}

/// ASCII as UTF-16.
std::string utf16(const std::string& ascii, bool big_endian) {
  std::string bytes;
  for (const char c : ascii) bytes += big_endian ? "\0"s + c : c + "\0"s;
  return bytes;
}

}  // namespace

TEST_CASE("a mark decides the encoding of a caption, and is no part of it") {
  CHECK(text_of("\xef\xbb\xbf"
                "a cat\r\n") == "a cat\r\n");
  CHECK(text_of("\xff\xfe" + utf16("a cat\r\n", false)) == "a cat\r\n");
  CHECK(text_of("\xfe\xff" + utf16("a cat", true)) == "a cat");
  CHECK(text_of("\xff\xfe\0\0a\0\0\0"s) == "a");
  CHECK(text_of("\xff\xfe\x3d\xd8\x00\xde"s) == "\U0001F600");
  CHECK_FALSE(caption_text("\xff\xfe" + utf16("a", false), "windows-1252").is_assumed);
  CHECK(caption_text("\xff\xfe\x3d\xd8"s, "windows-1252").fault ==
        "its caption is damaged UTF-16LE");  // half a pair
  CHECK(caption_text("\xef\xbb\xbf"
                     "caf\xe9",
                     "windows-1252")
            .fault == "its caption is damaged UTF-8");
}

TEST_CASE("UTF-16 without a byte order mark is recognised by its high bytes") {
  CHECK(text_of("\x3a\x04\x3e\x04\x42\x04\x20\x00"s) == "кот ");
  CHECK(text_of("\x05\xd0\x05\xd1\x05\xd2"s) == "אבג");
  CHECK(text_of(utf16("a red car", false)) == "a red car");
  CHECK(text_of(utf16("a red car", true)) == "a red car");
  CHECK(text_of(utf16("caf", true) + "\0\xe9"s) == "café");
  CHECK(text_of(utf16("a dash ", false) + "\x14\x20"s) == "a dash —");
  CHECK(text_of("abc\0"s) == "abc\0"s);  // a zero at its end
  CHECK(text_of("a\0b"s) == "a\0b"s);
}

TEST_CASE("other bytes are in the encoding that is given, and this is told") {
  CHECK(text_of("caf\xe9") == "café");
  CHECK(caption_text("caf\xe9", "windows-1252").is_assumed);
  CHECK_FALSE(caption_text("café", "windows-1252").is_assumed);
  CHECK(text_of("\xea\xee\xf2", "windows-1251") == "кот");
  CHECK(text_of("\x93\xfa\x96\x7b", "shift_jis") == "日本");
  const CaptionText none = caption_text("\x81\x8d", "windows-1252");
  CHECK(none.text.empty());
  CHECK_FALSE(none.is_assumed);
  CHECK(none.fault ==
        "its caption is neither UTF-8 nor windows-1252: caption_encoding names another");
}

TEST_CASE("a caption of white space or characters without width is none") {
  for (const std::string& blank : {""s,
                                   "  \n"s,
                                   "\xef\xbb\xbf"s,
                                   "\xff\xfe"s,
                                   "\u00a0"s,
                                   "\u3000\u3000\n"s,
                                   "\u200b\ufeff\u2060"s,
                                   "\xa0"s,
                                   utf16(" \n", true)}) {
    CAPTURE(blank);
    const CaptionText caption = caption_text(blank, "windows-1252");
    CHECK(caption.text.empty());
    CHECK(caption.fault == "its caption is empty");
    CHECK(caption.lines == 0);
  }
  CHECK(text_of("\u3000x") == "\u3000x");
}

TEST_CASE("the lines of a caption that are not blank are counted, and taken one by one") {
  const std::string text = "\n \r\na frog\r\n\u00a0\nune grenouille\rein Frosch\n\n";
  CHECK(caption_text(text, "windows-1252").lines == 3);
  CHECK(text_of(text) == text);
  CHECK(text_lines(text).front() == "a frog");
  CHECK(text_lines(text).at(2) == "ein Frosch");
  CHECK(caption_text("a frog\n", "windows-1252").lines == 1);
}

TEST_CASE("a file of several captions becomes UTF-8 only if it says what it is") {
  CHECK(unicode_text("\xef\xbb\xbf"
                     "a\nb") == "a\nb");
  CHECK(unicode_text("\xff\xfe" + utf16("a\nb", false)) == "a\nb");
  CHECK(unicode_text("a\xe9\n") == "a\xe9\n");
  CHECK_FALSE(
      unicode_text("\xff\xfe"
                   "a"));
}

TEST_CASE("an encoding that ICU does not know is named, with some that it does") {
  for (const char* name : {"windows-1252", "Shift_JIS", "gb18030", "latin1", "koi8-r", "utf-8"})
    CHECK_NOTHROW(check_caption_encoding(name, "key"));
  for (const char* name : {"windows-1521", ""}) {
    CHECK_THROWS_WITH(
        check_caption_encoding(name, "key"),
        "key: ICU has no encoding \""s + name +
            "\"; common ones are windows-1252, windows-1251, iso-8859-2, koi8-r, shift_jis, euc-kr, "
            "gb18030 and big5");
  }
}

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
