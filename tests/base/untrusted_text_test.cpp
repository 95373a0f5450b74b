// SPDX-License-Identifier: MIT
#include "base/untrusted_text.h"

#include <catch2/catch.hpp>
#include <string>

namespace dalle2 {
namespace {

TEST_CASE("control characters of a name are shown, not sent to the terminal") {
  CHECK(printable("000\x1b[2J1.jpg") == "000\\x1b[2J1.jpg");
  CHECK(printable("a\r\nerror: b\x7f") == "a\\x0d\\x0aerror: b\\x7f");
  CHECK(printable(std::string("\0", 1)) == "\\x00");
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\x9b2J");
  CHECK(printable("what\n  to do\tnow") == "what\n  to do\tnow");
  CHECK(printable("K\xc3\xa4tzchen") == "K\xc3\xa4tzchen");
}

TEST_CASE("a name in a line begins no other line") {
  CHECK(one_line("a\n  b\x1b[2J\n") == "a\\x0a  b\\x1b[2J\\x0a");
  CHECK(one_line("K\xc3\xa4tzchen\t1") == "K\xc3\xa4tzchen\t1");
}

TEST_CASE("bytes of a name that are no UTF-8 are not sent to the terminal") {
  CHECK(printable("a\xff.png") == "a\xef\xbf\xbd.png");
  CHECK(one_line("\xed\xa0\x80\xc3\xa4") == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xc3\xa4");
}

TEST_CASE("JSON for a terminal has no control characters, and means the same") {
  CHECK(escaped_json("{\"a\x7f\": \"\xc2\x9b"
                     "2J\xc2\x80\"}") == R"({"a\u007f": "\u009b2J\u0080"})");
  CHECK(escaped_json("\"K\xc3\xa4tzchen \xc2\xa0 \xe2\x82\xac\"") ==
        "\"K\xc3\xa4tzchen \xc2\xa0 \xe2\x82\xac\"");
  CHECK(escaped_json("\"\xc2") == "\"\xc2");
}

TEST_CASE("UTF-8 is told from other bytes") {
  for (const char* text :
       {"", "cat", "K\xc3\xa4tzchen", "\xe2\x82\xac", "\xf0\x9f\x98\xba", "\xf4\x8f\xbf\xbf"}) {
    CHECK(is_utf8(text));
  }
  // A lone byte, one cut off, overlong, a surrogate, beyond Unicode.
  for (const char* text :
       {"\xe4", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    CHECK_FALSE(is_utf8(text));
  }
}

TEST_CASE("what is not UTF-8 is told by its first wrong byte") {
  CHECK(utf8_fault("K\xc3\xa4tzchen") == std::nullopt);
  CHECK(utf8_fault("caf\xe9!") == "expected UTF-8, got the byte 0xe9 at offset 3");
  CHECK(utf8_fault("\xc3\xa4\xed\xa0\x80") == "expected UTF-8, got the byte 0xed at offset 2");
  CHECK(utf8_fault("a\xe2\x82") == "expected UTF-8, got the byte 0xe2 at offset 1");
}

TEST_CASE("bytes that belong to no character are replaced one by one") {
  CHECK(as_utf8("K\xc3\xa4tzchen") == "K\xc3\xa4tzchen");
  CHECK(as_utf8("a\xff\xc3(") == "a\xef\xbf\xbd\xef\xbf\xbd(");
  CHECK(as_utf8("\xed\xa0\x80") == "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

}  // namespace
}  // namespace dalle2
