// SPDX-License-Identifier: MIT
#include "io/text/html_entities.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "io/text/unicode.h"

namespace dalle2 {
namespace {

struct Entity {
  std::string_view name;  // "amp;", and "amp" where the semicolon may be missing
  std::string_view text;  // UTF-8
};

constexpr Entity kEntities[] = {
#include "io/text/html_entities.inc"
};

constexpr size_t kLongestName = 32, kLongestClosedName = 24;
constexpr char32_t kReplacement = 0xFFFD, kMostPoint = 0x10FFFF;

/// What the bytes 0x80 to 0x9f mean in Windows-1252; 0: nothing.
constexpr std::array<char32_t, 32> kWindows1252 = {
    0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178};

std::optional<std::u32string> entity(std::string_view name) {
  const auto* const found =
      std::lower_bound(std::begin(kEntities),
                       std::end(kEntities),
                       name,
                       [](const Entity& each, std::string_view key) { return each.name < key; });
  if (found == std::end(kEntities) || found->name != name) return std::nullopt;
  return code_points(found->text);
}

/// ASCII of a piece of text; other characters, which no name has, as '?'.
std::string ascii(std::u32string_view text) {
  std::string bytes;
  for (const char32_t c : text) bytes += c < 0x80 ? static_cast<char>(c) : '?';
  return bytes;
}

bool is_digit(char32_t c, bool hexadecimal) {
  return (c >= '0' && c <= '9') ||
         (hexadecimal && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')));
}

bool is_alphanumeric(char32_t c) {
  return is_digit(c, false) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_non_character(char32_t c) {
  return (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE;
}

bool is_unwanted_control(char32_t c) {
  return (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F;
}

std::u32string numbered(char32_t number) {
  if (number == 0 || number > kMostPoint || (number >= 0xD800 && number <= 0xDFFF)) {
    return {kReplacement};
  }
  if (number >= 0x80 && number <= 0x9F) return {windows_1252_meaning(number)};
  if (is_unwanted_control(number) || is_non_character(number)) return {};
  return {number};
}

struct Reference {
  size_t length = 0;  // characters of the text, the "&" included; 0: none
  std::u32string meaning;
};

/// @param rest begins with "&#"
Reference numeric_reference(std::u32string_view rest) {
  const bool hexadecimal = rest.size() > 2 && (rest[2] == 'x' || rest[2] == 'X');
  size_t end = hexadecimal ? 3 : 2;
  const size_t begin = end;
  char32_t number = 0;
  for (; end < rest.size() && is_digit(rest[end], hexadecimal); ++end) {
    const char32_t c = rest[end];
    const char32_t digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    number = std::min<char32_t>(number * (hexadecimal ? 16 : 10) + digit, kMostPoint + 1);
  }
  if (end == begin) return {};
  if (end < rest.size() && rest[end] == ';') ++end;
  return {end, numbered(number)};
}

/// @param rest begins with "&"
Reference named_reference(std::u32string_view rest) {
  constexpr std::u32string_view kEnds = U"\t\n\f <&#;";
  size_t end = 1;
  while (end < rest.size() && end <= kLongestName &&
         kEnds.find(rest[end]) == std::u32string_view::npos) {
    ++end;
  }
  if (end < rest.size() && end > 1 && rest[end] == ';') ++end;
  for (size_t length = end; length > 2; --length) {
    if (auto meaning = entity(ascii(rest.substr(1, length - 1)))) return {length, *meaning};
  }
  return {};
}

Reference reference(std::u32string_view rest) {
  return rest.size() > 1 && rest[1] == '#' ? numeric_reference(rest) : named_reference(rest);
}

/// @param rest begins with "&"
Reference closed_reference(std::u32string_view rest) {
  const size_t begin = rest.size() > 1 && rest[1] == '#' ? 2 : 1;
  size_t end = begin;
  while (end < rest.size() && is_alphanumeric(rest[end])) ++end;
  const bool fits = end > begin && end - begin <= kLongestClosedName;
  if (!fits || end == rest.size() || rest[end] != ';') return {};
  const std::u32string_view whole = rest.substr(0, end + 1);
  if (begin == 2) {
    Reference found = numeric_reference(whole);
    return found.length == whole.size() && found.meaning != U";" ? found : Reference{};
  }
  const std::string name = ascii(whole.substr(1));
  if (auto meaning = entity(name)) return {whole.size(), *meaning};
  const bool in_capitals = std::none_of(
      name.begin(), name.end(), [](char letter) { return letter >= 'a' && letter <= 'z'; });
  // Where a browser reads something else from the capitals, that is what is meant.
  if (!in_capitals || reference(whole).length != 0) return {};
  const auto small = entity(lower_case(name));
  return small ? Reference{whole.size(), upper_case_of(*small)} : Reference{};
}

template <class Find>
std::u32string replaced(const std::u32string& text, const Find& find) {
  if (text.find(U'&') == std::u32string::npos) return text;
  std::u32string result;
  for (size_t i = 0; i < text.size();) {
    const Reference found =
        text[i] == '&' ? find(std::u32string_view(text).substr(i)) : Reference{};
    if (found.length == 0) {
      result += text[i++];
    } else {
      result += found.meaning;
      i += found.length;
    }
  }
  return result;
}

}  // namespace

char32_t windows_1252_meaning(char32_t c) {
  if (c < 0x80 || c > 0x9F) return c;
  const char32_t meant = kWindows1252[c - 0x80];
  return meant != 0 ? meant : c;
}

std::u32string unescape_html(const std::u32string& text) {
  return replaced(text, reference);
}

std::u32string unescape_closed_html(const std::u32string& text) {
  return replaced(text, closed_reference);
}

}  // namespace dalle2
