// SPDX-License-Identifier: MIT
#include "config/reading/coerce.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/text.h"

namespace dalle2 {
namespace {

std::string trimmed(const std::string& text) {
  const char* kSpaces = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) + 1 - begin);
}

// The scanners below take texts of any length, which std::regex does not: it calls itself for each
// character.
bool is_digit(const std::string& text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}
bool is_sign(const std::string& text, size_t at) {
  return at < text.size() && (text[at] == '-' || text[at] == '+');
}

// The end of the digits that begin at `at`, which Python lets single underscores divide.
size_t digits_end(const std::string& text, size_t at) {
  while (is_digit(text, at)) {
    ++at;
    if (at < text.size() && text[at] == '_' && is_digit(text, at + 1)) ++at;
  }
  return at;
}

std::optional<double> number_of(const std::string& text) {
  std::string digits = trimmed(text);
  const size_t begin = is_sign(digits, 0) ? 1 : 0;
  size_t at = digits_end(digits, begin);
  bool has_digits = at > begin;
  if (at < digits.size() && digits[at] == '.') {
    const size_t end = digits_end(digits, at + 1);
    has_digits |= end > at + 1;
    at = end;
  }
  if (!has_digits) return std::nullopt;
  if (at < digits.size() && (digits[at] == 'e' || digits[at] == 'E')) {
    const size_t exponent = at + (is_sign(digits, at + 1) ? 2 : 1);
    at = digits_end(digits, exponent);
    if (at == exponent) return std::nullopt;
  }
  if (at != digits.size()) return std::nullopt;
  std::erase(digits, '_');
  return std::strtod(digits.c_str(), nullptr);
}

std::optional<int64_t> whole(double value) {
  // 2^63 is the first double beyond int64.
  if (!(std::abs(value) < 9223372036854775808.0) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> integer_of(const std::string& text) {
  std::string digits = trimmed(text);
  const size_t begin = is_sign(digits, 0) ? 1 : 0;
  const size_t end = digits_end(digits, begin);
  if (end == begin) return std::nullopt;
  if (end < digits.size()) {
    const bool zeros = digits[end] == '.' && end + 1 < digits.size() &&
                       digits.find_first_not_of('0', end + 1) == std::string::npos;
    if (!zeros) return std::nullopt;
  }
  digits.resize(end);
  std::erase(digits, '_');
  errno = 0;
  const int64_t value = std::strtoll(digits.c_str(), nullptr, 10);
  return errno == 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) return whole(value.get<double>());
  if (value.is_string()) return integer_of(value.get<std::string>());
  return std::nullopt;
}

std::optional<double> as_number(const Json& value) {
  std::optional<double> number;
  if (value.is_boolean()) number = value.get<bool>() ? 1 : 0;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) number = number_of(value.get<std::string>());
  if (number && !std::isfinite(*number)) return std::nullopt;
  return number;
}

std::optional<bool> as_boolean(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) {
    const double number = value.get<double>();
    if (number == 0 || number == 1) return number == 1;
  }
  if (value.is_string()) {
    const std::string word = lower_case(value.get<std::string>());
    for (const char* yes : {"1", "on", "t", "true", "y", "yes"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"0", "off", "f", "false", "n", "no"}) {
      if (word == no) return false;
    }
  }
  return std::nullopt;
}

std::string limits_text(const Limits& limits) {
  std::string text;
  if (std::isfinite(limits.low)) {
    text = fmt::format("{} {}", limits.low_open ? ">" : ">=", limits.low);
  }
  if (std::isfinite(limits.high)) {
    text += fmt::format(
        "{}{} {}", text.empty() ? "" : " and ", limits.high_open ? "<" : "<=", limits.high);
  }
  return text;
}

std::optional<std::string> limit_fault(const Limits& limits, double value, const std::string& got) {
  const bool low = limits.low_open ? value > limits.low : value >= limits.low;
  const bool high = limits.high_open ? value < limits.high : value <= limits.high;
  if (low && high) return std::nullopt;
  return fmt::format("must be {}, got {}", limits_text(limits), got);
}

bool is_remote(const std::string& path) {
  // A single letter in front of the colon is a drive.
  const size_t colon = path.find(':');
  if (colon == std::string::npos || colon < 2 || path.starts_with("file:")) return false;
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '+' || c == '.' || c == '-';
  };
  return std::isalpha(static_cast<unsigned char>(path[0])) &&
         std::all_of(path.begin() + 1, path.begin() + static_cast<ptrdiff_t>(colon), fits);
}

bool is_fetched(const std::string& path) {
  for (const char* scheme : {"http://", "https://", "s3://", "hf://", "pipe:"}) {
    if (path.starts_with(scheme)) return true;
  }
  return false;
}

}  // namespace dalle2
