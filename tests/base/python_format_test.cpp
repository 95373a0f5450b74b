// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "support/fixture_folder.h"

namespace dalle2 {
namespace {

nlohmann::json parity_cases() {
  return nlohmann::json::parse(std::ifstream(test::fixture_folder("format") + "/cases.json"));
}

FormatValue decode(const nlohmann::json& value) {
  const auto real = [](const std::string& text) { return std::strtod(text.c_str(), nullptr); };
  if (value.is_null()) return std::monostate();
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_string()) return value.get<std::string>();
  if (value.contains("float")) return real(value["float"].get<std::string>());
  std::vector<double> list;
  for (const auto& entry : value["list"]) list.push_back(real(entry.get<std::string>()));
  return list;
}

std::string format_or_error(const std::string& text, const FormatFields& fields) {
  try {
    return python_format(text, fields);
  } catch (const ConfigError& error) {
    return std::string("error: ") + error.what();
  }
}

TEST_CASE("templates give what Python's str.format gives, and fail where it fails") {
  const nlohmann::json cases = parity_cases();
  REQUIRE(cases.size() > 1000);
  for (const auto& one : cases) {
    const std::string text = one["template"].get<std::string>();
    FormatFields fields;
    for (const auto& [name, value] : one["fields"].items())
      fields.emplace_back(name, decode(value));
    CAPTURE(text, one["fields"].dump());
    if (one["expected"].is_null()) {
      CHECK_THROWS_AS(python_format(text, fields), ConfigError);
    } else {
      CHECK(format_or_error(text, fields) == one["expected"].get<std::string>());
    }
  }
}

TEST_CASE("an unknown placeholder is told with the known ones and the one that was meant") {
  const FormatFields fields = {{"epoch", int64_t{3}}, {"samples_seen", int64_t{64}}};
  CHECK_THROWS_WITH(python_format("{epcoh}.pth", fields),
                    Catch::Contains("{epcoh}") && Catch::Contains("did you mean {epoch}") &&
                        Catch::Contains("{samples_seen}"));
}

TEST_CASE("a value that is not there yet takes no spec, and says what to do") {
  const FormatFields fields = {{"best", std::monostate()}, {"loss", HUGE_VAL}};
  CHECK(python_format("{best}_{loss:.3f}", fields) == "None_inf");
  CHECK_THROWS_WITH(python_format("{best:.3f}", fields),
                    "there is no value yet (None), which takes no format spec, got ':.3f': leave "
                    "the spec out");
}

TEST_CASE("a number in a spec that no file name could hold is refused") {
  const FormatFields fields = {{"epoch", int64_t{3}}};
  CHECK(python_format_example("{losses[7]:.1f}", {{"losses", std::vector<double>{0.5}}}) == "0.5");
  CHECK(python_format_example("{losses[7]:.1f}", {{"losses", std::vector<double>{}}}) == "0.0");
  CHECK_THROWS_WITH(python_format("{losses[0]}", {{"losses", std::vector<double>{}}}),
                    Catch::Contains("the list has 0 entries now"));
  CHECK_THROWS_WITH(python_format("{epoch:99999999999}", fields), Catch::Contains("too large"));
  CHECK_THROWS_AS(python_format("{epoch:.99999999999f}", fields), ConfigError);
}

TEST_CASE("a template is judged by examples, whatever the length of a list will be") {
  const FormatFields examples = {{"epoch", int64_t{0}}, {"losses", std::vector<double>{0.0}}};
  CHECK(python_format_fault("{epoch:03d}_{losses[7]:.3f}", examples) == std::nullopt);
  CHECK(python_format_fault("{losses[x]}", examples) ==
        "'{losses[x]}': the index of a list is a whole number from 0");
  CHECK(python_format_fault("{losses:.3f}", examples) == "a list takes no format spec, got ':.3f'");
  CHECK(python_format_fault("{epoch", examples) ==
        "a '{' without its '}' in '{epoch': write '{{' for the brace itself");
}

TEST_CASE("a template cannot make a text that fills the memory") {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "{epoch:4096}";
  CHECK_THROWS_WITH(python_format(text, {{"epoch", int64_t{3}}}),
                    "its placeholders would give a text of more than 65536 bytes");
}

TEST_CASE("a code that is no printable letter is refused in a file name") {
  CHECK_THROWS_AS(python_format_value(int64_t{10}, "c"), ConfigError);
  CHECK(python_format_value(int64_t{65}, "c") == "A");
}

TEST_CASE("the text between fields is cut at them") {
  CHECK(python_format_literals("a{epoch:03d}b{sample}") == std::vector<std::string>{"a", "b", ""});
  CHECK(python_format_literals("{{x}}") == std::vector<std::string>{"{x}"});
  CHECK(python_format_literals("") == std::vector<std::string>{""});
}

TEST_CASE("a float is shown with the fewest digits that give it back") {
  CHECK(python_repr(13.725955963134766) == "13.725955963134766");
  CHECK(python_repr(1) == "1.0");
  CHECK(python_repr(1e16) == "1e+16");
  CHECK(python_repr(-0.00001) == "-1e-05");
}

}  // namespace
}  // namespace dalle2
