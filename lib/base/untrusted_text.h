// SPDX-License-Identifier: MIT
// Text from other people's files: names, keys, captions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dalle2 {

/// Whether a byte begins a character of UTF-8, and does not continue one.
constexpr bool begins_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80;
}

/// True for well-formed UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing beyond
/// U+10FFFF.
bool is_utf8(std::string_view text);

/// Where the first byte stands that belongs to no character; the text's size if there is none.
size_t first_foreign_byte(std::string_view text);

/// What is wrong with a text that is not UTF-8: "expected UTF-8, got the byte 0xed at offset 4";
/// nothing if it is. Every message about such text ends in this.
std::optional<std::string> utf8_fault(std::string_view text);

/// The text with its control characters as `\x1b` and bytes that are no UTF-8 as U+FFFD, so that no
/// name in a file can write to the terminal or begin a line of the log. Line breaks before two spaces, which continue a message,
/// stay.
std::string printable(const std::string& text);

/// The text with each byte that is not part of a UTF-8 character replaced by U+FFFD.
std::string as_utf8(std::string_view text);

/// A name from somebody's file, for use within a line: printable(), with its line breaks as `\x0a`
/// too.
std::string one_line(const std::string& text);

/// JSON text as a terminal may show it: DEL and the control characters U+0080 to U+009F, which JSON
/// leaves as they are, as `\u009b`. It means the same.
std::string escaped_json(const std::string& json);

}  // namespace dalle2
