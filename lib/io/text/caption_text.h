// SPDX-License-Identifier: MIT
// The bytes of a caption as text: one rule for shards, folders and tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dalle2 {

struct CaptionText {
  std::string text = {};    ///< UTF-8; empty: there is no caption
  std::string fault = {};   ///< why there is none: "its caption is empty"
  bool is_assumed = false;  ///< only `encoding` could read it
  int64_t lines = 0;        ///< that are not blank
};

/// A byte order mark decides (UTF-8, UTF-16, UTF-32). Else it is UTF-16 if nearly every other byte is 0;
/// else UTF-8 if it is well-formed; else `encoding`, a name that ICU knows.
CaptionText caption_text(std::string_view bytes, const std::string& encoding);
/// A file of several captions: with a mark, or in UTF-16, as UTF-8, another as it is; none if it is damaged.
std::optional<std::string> unicode_text(std::string bytes);
/// A line of a caption. @param number from 0, of those that are not blank
std::string caption_line(std::string_view text, int64_t number);
/// Whether a text is only white space, characters without width and control characters.
bool is_blank(std::string_view text);
/// Why ICU cannot open an encoding, and which it could; none if it can.
std::optional<std::string> encoding_fault(const std::string& name);

}  // namespace dalle2
