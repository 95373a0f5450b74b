// SPDX-License-Identifier: MIT
#include "io/text/clean_caption.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text.h"
#include "io/text/html_entities.h"
#include "io/text/unicode.h"

namespace dalle2 {
namespace {

constexpr char32_t kEscape = 0x1B;
/// A reference within a reference takes a round of repairs; no text of people has as many.
constexpr int kMostRounds = 32;

/// Ligatures and digraphs of Latin letters that stand for the letters in them.
constexpr std::pair<char32_t, std::u32string_view> kLigatures[] = {
    {0x0132, U"IJ"},      {0x0133, U"ij"},      {0x0149, U"\u02BCn"}, {0x01C4, U"D\u017D"},
    {0x01C5, U"D\u017E"}, {0x01C6, U"d\u017E"}, {0x01C7, U"LJ"},      {0x01C8, U"Lj"},
    {0x01C9, U"lj"},      {0x01CA, U"NJ"},      {0x01CB, U"Nj"},      {0x01CC, U"nj"},
    {0x01F1, U"DZ"},      {0x01F2, U"Dz"},      {0x01F3, U"dz"},      {0xFB00, U"ff"},
    {0xFB01, U"fi"},      {0xFB02, U"fl"},      {0xFB03, U"ffi"},     {0xFB04, U"ffl"},
    {0xFB05, U"\u017Ft"}, {0xFB06, U"st"}};

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

void append_repaired(std::u32string& out, char32_t c) {
  const auto* const ligature = std::find_if(std::begin(kLigatures),
                                            std::end(kLigatures),
                                            [&](const auto& each) { return each.first == c; });
  if (ligature != std::end(kLigatures)) {
    out += ligature->second;
  } else if (c == 0x3000) {
    out += U' ';
  } else if (is_in(c, 0xFF01, 0xFFEF)) {
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
  const auto continues = [&](size_t at) { return (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80; };
  size_t size = kMostCaptionBytes;
  while (size > kMostCaptionBytes - 4 && continues(size)) --size;
  return text.substr(0, size);
}

/// Whether repairs and HTML leave the text as it is.
bool is_plain_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= ' ' && c <= '~' && c != '&') || c == '\n' || c == '\t';
  });
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

}  // namespace

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
