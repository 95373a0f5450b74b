// SPDX-License-Identifier: MIT
#include "io/text/caption_text.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/text.h"
#include "base/untrusted_text.h"
#include "io/text/unicode.h"

namespace dalle2 {
namespace {

// Character references of HTML: "&amp;", "&#233;", "&#xe9;".

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

/// What a character U+0080 to U+009F, a control of no use, means where it was a byte of Windows-1252; the
/// character itself if nothing, and for all others.
char32_t windows_1252_meaning(char32_t c) {
  if (c < 0x80 || c > 0x9F) return c;
  const char32_t meant = kWindows1252[c - 0x80];
  return meant != 0 ? meant : c;
}

std::optional<std::u32string> entity(std::string_view name) {
  const auto* const found = std::ranges::lower_bound(kEntities, name, {}, &Entity::name);
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
  const bool in_capitals =
      std::ranges::none_of(name, [](char letter) { return letter >= 'a' && letter <= 'z'; });
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

/// Replaces the references as a browser does (HTML Living Standard, section 13.2.5.72), also those
/// without a semicolon: "&notit" becomes "¬it". Equal to Python's html.unescape().
std::u32string unescape_html(const std::u32string& text) {
  return replaced(text, reference);
}

/// Replaces only what ends in a semicolon, and knows names that were set in capitals besides:
/// "&EACUTE;" becomes "É". Equal to unescape_html() of ftfy 6.3.
std::u32string unescape_closed_html(const std::u32string& text) {
  return replaced(text, closed_reference);
}

// Repairs.

constexpr char32_t kEscape = 0x1B;
/// A reference within a reference takes a round of repairs; no text of people has as many.
constexpr int kMostRounds = 32;

bool is_in(char32_t c, char32_t first, char32_t last) {
  return c >= first && c <= last;
}

bool is_dropped_control(char32_t c) {
  return is_in(c, 0x00, 0x08) || c == 0x0B || is_in(c, 0x0E, 0x1F) || c == 0x7F ||
         is_in(c, 0x206A, 0x206F) || c == 0xFEFF || is_in(c, 0xFFF9, 0xFFFC);
}

bool is_line_break(char32_t c) {
  return c == '\r' || c == 0x2028 || c == 0x2029 || c == 0x85;
}

/// Ligatures and digraphs of Latin letters, the ideographic space, full and half width.
bool is_compatible(char32_t c) {
  return is_in(c, 0x0132, 0x0133) || c == 0x0149 || is_in(c, 0x01C4, 0x01CC) ||
         is_in(c, 0x01F1, 0x01F3) || is_in(c, 0xFB00, 0xFB06) || c == 0x3000 ||
         is_in(c, 0xFF01, 0xFFEF);
}

void append_repaired(std::u32string& out, char32_t c) {
  if (c == 0xFB05) {
    out += U"\u017Ft";  // NFKC makes a plain s of the long one too
  } else if (is_compatible(c)) {
    out += nfkc({c});
  } else {
    out += c;
  }
}

/// Length of an escape that colours a terminal, ESC [ 1 ; 31 m; 0 if there is none.
size_t escape_length(std::u32string_view rest) {
  if (rest.size() < 3 || rest[0] != kEscape || rest[1] != '[') return 0;
  size_t end = 2;
  while (end < rest.size() && (rest[end] == ';' || is_decimal_digit(rest[end]))) ++end;
  const bool is_closed = end < rest.size() && (is_in(rest[end] | 0x20, 'a', 'z'));
  return is_closed ? end + 1 : 0;
}

/// Characters that stand for others, one by one.
std::u32string with_plain_characters(const std::u32string& text) {
  std::u32string plain;
  for (const char32_t c : text) append_repaired(plain, windows_1252_meaning(c));
  for (char32_t& c : plain) {
    if (c == 0x02BC || is_in(c, 0x2018, 0x201B)) c = '\'';
    if (is_in(c, 0x201C, 0x201F)) c = '"';
  }
  return plain;
}

std::u32string without_controls(const std::u32string& text) {
  std::u32string kept;
  for (size_t i = 0; i < text.size();) {
    if (const size_t escape = escape_length(std::u32string_view(text).substr(i))) {
      i += escape;
      continue;
    }
    const char32_t c = text[i++];
    if (c == '\r' && i < text.size() && text[i] == '\n') continue;
    if (!is_dropped_control(c)) kept += is_line_break(c) ? U'\n' : c;
  }
  return kept;
}

std::u32string repair_segment(std::u32string text, bool unescape) {
  for (int round = 0; round < kMostRounds; ++round) {
    std::u32string next = unescape ? unescape_closed_html(text) : text;
    next = nfc(without_controls(with_plain_characters(next)));
    if (next == text) return text;
    text = std::move(next);
  }
  return text;
}

/// At most kMostCaptionBytes of a text, without a part of a character at the end.
std::string_view beginning(std::string_view text) {
  if (text.size() <= kMostCaptionBytes) return text;
  size_t size = kMostCaptionBytes;
  while (size > kMostCaptionBytes - 4 && !begins_character(text[size])) --size;
  return text.substr(0, size);
}

/// Whether repairs and HTML leave the text as it is.
bool is_plain_ascii(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= ' ' && c <= '~' && c != '&') || c == '\n' || c == '\t'; });
}

std::u32string with_single_spaces(const std::u32string& text) {
  std::u32string result;
  for (const char32_t c : text) {
    if (!is_white_space(c)) {
      result += c;
    } else if (!result.empty() && result.back() != ' ') {
      result += U' ';
    }
  }
  if (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

/// The repairs of ftfy 6.3's fix_text() but for text that was decoded by the wrong encoding
/// (docs/parity.md): closed HTML references, control characters of Windows-1252, ligatures, full and
/// half width, curly quotes, line breaks, escapes of terminals, control characters, NFC.
std::u32string repair_text(const std::u32string& text) {
  std::u32string repaired;
  bool unescape = true;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_break = text.find(U'\n', begin);
    const size_t line_end = line_break == std::u32string::npos ? text.size() : line_break + 1;
    std::u32string segment = text.substr(begin, line_end - begin);
    // A text with tags is HTML itself, and its references are meant.
    if (segment.find(U'<') != std::u32string::npos) unescape = false;
    repaired += repair_segment(std::move(segment), unescape);
    begin = line_end;
  }
  return repaired;
}

}  // namespace

std::u32string clean_caption(std::string_view whole) {
  const std::string_view text = beginning(whole);
  if (is_plain_ascii(text)) {
    const std::string small = lower_case(text);
    return with_single_spaces({small.begin(), small.end()});
  }
  return lower_case_of(
      with_single_spaces(unescape_html(unescape_html(repair_text(code_points(text))))));
}

}  // namespace dalle2
