// SPDX-License-Identifier: MIT
#include "base/untrusted_text.h"

#include <fmt/format.h>

namespace dalle2 {
namespace {

/// Length of the UTF-8 character at `at`; 0 if there is none.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned lead = byte(at), second = byte(at + 1);
  if (lead < 0x80) return 1;
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0U) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : length;
}

bool is_control(unsigned char c) {
  return c < 0x20 || c == 0x7f;
}

/// U+0080 to U+009F are control characters too: their second byte, 0 if there is none at `at`.
unsigned char second_page_control(const std::string& text, size_t at) {
  if (static_cast<unsigned char>(text[at]) != 0xc2 || at + 1 >= text.size()) return 0;
  const auto second = static_cast<unsigned char>(text[at + 1]);
  return (second & 0xe0U) == 0x80 ? second : 0;
}

}  // namespace

size_t first_foreign_byte(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

bool is_utf8(std::string_view text) {
  return first_foreign_byte(text) == text.size();
}

std::optional<std::string> utf8_fault(std::string_view text) {
  const size_t at = first_foreign_byte(text);
  if (at == text.size()) return std::nullopt;
  return fmt::format("expected UTF-8, got the byte 0x{:02x} at offset {}",
                     static_cast<unsigned char>(text[at]),
                     at);
}

std::string as_utf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t good = first_foreign_byte(text);
    out.append(text.substr(0, good));
    if (good == text.size()) break;
    out += "\xef\xbf\xbd";
    text.remove_prefix(good + 1);
  }
  return out;
}

std::string printable(const std::string& raw) {
  const std::string text = as_utf8(raw);
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\t' || (c == '\n' && text.compare(i + 1, 2, "  ") == 0)) {
      out += text[i];
    } else if (is_control(c)) {
      out += fmt::format("\\x{:02x}", c);
    } else if (const unsigned char second = second_page_control(text, i)) {
      out += fmt::format("\\x{:02x}", second);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string escaped_json(const std::string& json) {
  std::string out;
  out.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    if (json[i] == 0x7f) {
      out += "\\u007f";
    } else if (const unsigned char second = second_page_control(json, i)) {
      out += fmt::format("\\u{:04x}", second);
      ++i;
    } else {
      out += json[i];
    }
  }
  return out;
}

std::string one_line(const std::string& text) {
  std::string out = printable(text);
  for (size_t at = 0; (at = out.find('\n', at)) != std::string::npos;) out.replace(at, 1, "\\x0a");
  return out;
}

}  // namespace dalle2
