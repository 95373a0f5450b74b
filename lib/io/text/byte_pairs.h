// SPDX-License-Identifier: MIT
// Words as CLIP's byte pair encoding sees them, and the letters that stand for bytes in its files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

inline constexpr int64_t kByteTokens = 256;
inline constexpr const char* kEndOfWord = "</w>";
inline constexpr const char* kStartOfText = "<|startoftext|>";
inline constexpr const char* kEndOfText = "<|endoftext|>";

/// Calls visit(word) for each word of a cleaned caption, in UTF-8: runs of letters, single numbers, runs
/// of anything else that is no space, the ends of English contractions ("'s"), kStartOfText and
/// kEndOfText.
void visit_words(const std::u32string& caption,
                 const std::function<void(const std::string& word)>& visit);

/// Names in files of merges of the 2 kByteTokens tokens before any merge: a printable letter for a byte,
/// with kEndOfWord at the end of a word.
std::vector<std::string> byte_token_names();

/// Tokens of a word before any merge: one a byte, that of the last byte kByteTokens more. @param word not empty
std::vector<int64_t> byte_tokens(std::string_view word);

}  // namespace dalle2
