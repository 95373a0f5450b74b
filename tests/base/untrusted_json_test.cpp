// SPDX-License-Identifier: MIT
#include "base/untrusted_json.h"

#include <catch2/catch.hpp>
#include <chrono>

#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string fault_of(const std::string& text, const JsonRules& rules = {}) {
  const ParsedJson parsed = parse_untrusted_json(text, rules);
  CHECK((parsed.is_right() || parsed.value.is_null()));
  return parsed.fault;
}

TEST_CASE("JSON of others comes out as it stands, keys in their order") {
  const std::string text =
      R"({"b": [1, -2, 3.5, true, null, "\u00e4\ud83d\ude3a", {}], "a": {"b": [[]]}})";
  const ParsedJson parsed = parse_untrusted_json(text);
  CHECK(parsed.fault.empty());
  CHECK(parsed.value == Json::parse(text));
  CHECK(parsed.value.dump() == Json::parse(text).dump());
  CHECK(parse_untrusted_json("18446744073709551615").value == UINT64_MAX);
  CHECK(parse_untrusted_json("\"a\"").value == "a");
}

TEST_CASE("of a key that stands there again the last value counts, and the place is told") {
  const ParsedJson parsed = parse_untrusted_json(R"({"a": 1, "b": {"x/y": 1, "x/y": 2}, "a": 3})");
  CHECK(parsed.value.dump() == R"({"a":3,"b":{"x/y":2}})");
  CHECK(parsed.twice == std::vector<std::string>{"/b/x~1y", "/a"});
}

TEST_CASE("a place in a list is told by its number") {
  CHECK(parse_untrusted_json(R"([0, {"a": [{"b": 1, "b": 2}]}])").twice ==
        std::vector<std::string>{"/1/a/0/b"});
  CHECK(fault_of(R"([0, [1, "\udc00"]])") ==
        R"(/1/1: expected UTF-8, got an escape that is half of a surrogate pair)");
}

TEST_CASE("what is no JSON is told by line and column") {
  CHECK(fault_of("{\"a\": 1,\n \"b\" 2}") ==
        "not valid JSON: parse error at line 2, column 6: syntax error while parsing object "
        "separator - unexpected number literal; expected ':'");
  CHECK(fault_of("{\"a\": 1,}") ==
        "not valid JSON: parse error at line 1, column 9: syntax error while parsing object key - "
        "unexpected '}'; expected string literal; remove the comma, if one stands before it");
  CHECK(
      fault_of("[1,]") ==
      "not valid JSON: parse error at line 1, column 4: syntax error while parsing value - "
      "unexpected ']'; expected '[', '{', or a literal; remove the comma, if one stands before it");
  CHECK(fault_of(std::string("{}\0x", 4)) == "not valid JSON: a NUL byte at offset 2");
  CHECK(fault_of("[1e999]") == "not valid JSON: number overflow parsing '1e999'");
  CHECK(fault_of("// c\n1").find("not valid JSON: ") == 0);
  CHECK(fault_of("// c\n1", {.comments = true}).empty());
  for (const char* cut : {"", " ", "[", "\"a", "{\"a\": \"\u00e4"}) {
    CHECK(parse_untrusted_json(cut).is_no_json);
    CHECK(fault_of(cut).starts_with("not valid JSON: "));
  }
}

TEST_CASE("text in JSON is UTF-8, and no half of a surrogate pair") {
  CHECK(fault_of(R"({"a": ["x", "\ud800"]})") ==
        R"(/a/1: expected UTF-8, got an escape that is half of a surrogate pair)");
  CHECK(fault_of(R"({"a": "\\ud800 \uD83D\uDE3A \uDE3A"})") ==
        R"(/a: expected UTF-8, got an escape that is half of a surrogate pair)");
  CHECK(fault_of(R"("\ud800\u0041")") ==
        R"(expected UTF-8, got an escape that is half of a surrogate pair)");
  CHECK(fault_of("{\"a\": \"x\xed\xa0\x80\"}") ==
        "/a: expected UTF-8, got the byte 0xed at line 1, column 9");
  CHECK(fault_of("{\"\u00e4\": 1,\n \"b\": \"\u00e4\xe9\"}") ==
        "/b: expected UTF-8, got the byte 0xe9 at line 2, column 9");
  CHECK(fault_of(R"({"a": {"b": [1], "\ud800": 2}})") ==
        R"(/a: expected UTF-8, got an escape that is half of a surrogate pair)");
  CHECK(fault_of(R"("\\ud800")").empty());
  CHECK_FALSE(parse_untrusted_json(R"("\ud800")").is_no_json);
}

TEST_CASE("signs that only look like those of JSON are named, with the plain ones") {
  const std::string expected = "', expected a plain sign: \", space, minus, comma or colon";
  CHECK(fault_of("{\n  \u201ctrain\u201d: 1}") == "line 2, column 3: got '\u201c" + expected);
  CHECK(fault_of("{\"\u00e4\": \u00abx\u00bb}") == "line 1, column 7: got '\u00ab" + expected);
  CHECK(fault_of("{\"a\":\u00a01}") == "line 1, column 6: got '\u00a0" + expected);
  CHECK(fault_of("[\u22121]") == "line 1, column 2: got '\u2212" + expected);
  CHECK(fault_of("{\"a\": \"\u201cx\u201d \u2013 y\"}").empty());
  CHECK(fault_of("{\"a\": \"x \u2013 y\" 1}").find("got '\u2013") == std::string::npos);
  CHECK(parse_untrusted_json("\u201cx\u201d").is_no_json);  // --set takes it for the text itself
}

TEST_CASE("JSON that is deeper or wider than allowed is refused") {
  const auto nested = [](size_t levels) { return repeated("[", levels) + repeated("]", levels); };
  CHECK(fault_of(nested(100)).empty());
  CHECK(fault_of(nested(101)) == "lists and objects nested more than 100 levels deep");
  CHECK(fault_of(repeated("{\"a\":", 500'000)) ==
        "lists and objects nested more than 100 levels deep");
  CHECK(fault_of(R"({"a": {"b": 1, "c": 2, "d": 3}})", {.most_keys = 2}) ==
        "/a: an object with more than 2 keys");
}

TEST_CASE("an object with very many keys is read in a time that grows with their number") {
  std::string text = "{\"first\": 0";
  for (int i = 0; i < 100'000; ++i) text += ",\"key_of_some_length_" + std::to_string(i) + "\":1";
  text += "}";
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  CHECK(parse_untrusted_json(text).value.size() == 100'001);
  // Looking each key up among all before it takes minutes.
  CHECK(Clock::now() - begin < std::chrono::seconds(10));
}

TEST_CASE("an object is an object, and all else is none") {
  CHECK(parse_untrusted_object(R"({"a": 1})").size() == 1);
  CHECK(parse_untrusted_object("[1]").is_null());
  CHECK(parse_untrusted_object("{").is_null());
}

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
