// SPDX-License-Identifier: MIT
#include "io/text/caption_text.h"

#include <catch2/catch.hpp>

#include <string>

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

TEST_CASE("UTF-16 without a mark shows by its zeros") {
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
  CHECK(caption_line(text, 0) == "a frog");
  CHECK(caption_line(text, 2) == "ein Frosch");
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
    CHECK_FALSE(encoding_fault(name));
  for (const char* name : {"windows-1521", ""}) {
    CHECK(
        encoding_fault(name) ==
        "ICU has no encoding \""s + name +
            "\"; common ones are windows-1252, windows-1251, iso-8859-2, koi8-r, shift_jis, euc-kr, "
            "gb18030 and big5");
  }
}
