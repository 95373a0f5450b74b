// SPDX-License-Identifier: MIT
#include "tracker/log/record.h"

#include <fmt/format.h>

#include "base/text.h"

namespace dalle2 {
namespace {

std::string text_of(const LogValue& value, int digits) {
  if (const auto* number = std::get_if<int64_t>(&value)) return with_commas(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return short_number(std::get<double>(value), digits);
}

}  // namespace

std::string record_line(const ShownRecord& shown, int64_t step) {
  std::string line = fmt::format("step {}", step);
  for (const ShownValue& part : shown) {
    std::string separator = "  ";
    const auto add = [&](const std::string& text) {
      if (text.empty()) return;
      line += separator + text;
      separator = " ";
    };
    add(part.label);
    for (const LogValue& value : part.values) add(text_of(value, part.digits));
    add(part.unit);
  }
  return line;
}

ShownRecord shown_in_full(const LogRecord& record) {
  ShownRecord shown;
  for (const auto& [name, value] : record) shown.push_back({.label = name, .values = {value}});
  return shown;
}

}  // namespace dalle2
