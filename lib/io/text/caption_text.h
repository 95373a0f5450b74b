// SPDX-License-Identifier: MIT
// The bytes of a caption as text: one rule for shards, folders and tables; and as the tokenizer of CLIP
// wants it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

struct CaptionText {
  std::string text = {};    ///< UTF-8; empty: there is no caption
  std::string fault = {};   ///< why there is none: "its caption is empty"
  bool is_unread = false;   ///< there is one, but it cannot be read
  bool is_assumed = false;  ///< only `encoding` could read it
  int64_t lines = 0;        ///< that are not blank
};

/// A byte order mark decides (UTF-8, UTF-16, UTF-32). Else it is UTF-16 if nearly every other byte is below 8;
/// else UTF-8 if it is well-formed; else `encoding`, a name that ICU knows.
CaptionText caption_text(std::string_view bytes, const std::string& encoding);
/// A file of several captions: with a mark, or in UTF-16, as UTF-8, another as it is; none if it is damaged.
std::optional<std::string> unicode_text(std::string bytes);
/// The lines of a caption that are not blank.
std::vector<std::string> text_lines(std::string_view text);
/// Whether a text is only white space, characters without width and control characters.
bool is_blank(std::string_view text);
/// @param key of the config, or option, that names the encoding
/// @throws ConfigError if ICU cannot open it, with some that it could
void check_caption_encoding(const std::string& encoding, const char* key);

/// Bytes of a text that are looked at. A CLIP reads some hundred, and a file may hold anything.
inline constexpr size_t kMostCaptionBytes = 16384;

/// What OpenAI's tokenizer makes of a text before it looks for words: the repairs of ftfy, HTML
/// references twice, runs of white space as one space, none at the ends, and lower case.
/// @param text bytes that are not UTF-8 become U+FFFD; what follows kMostCaptionBytes is left out
std::u32string clean_caption(std::string_view text);

}  // namespace dalle2
