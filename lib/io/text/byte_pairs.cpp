// SPDX-License-Identifier: MIT
#include "io/text/byte_pairs.h"

#include <algorithm>
#include <array>

#include "io/text/unicode.h"

namespace dalle2 {
namespace {

/// Endings that are words of their own, after an apostrophe.
constexpr std::u32string_view kContractions[] = {U"s", U"t", U"re", U"ve", U"m", U"ll", U"d"};
constexpr std::u32string_view kEnclosing[] = {U"<|startoftext|>", U"<|endoftext|>"};

// OpenAI's pattern ignores case. The first equals the letter s but for it; the second is a mark that
// equals a letter but for it, and so is neither a letter nor anything else.
constexpr char32_t kLongS = 0x17F, kIotaSubscript = 0x345;

bool begins_with(std::u32string_view text, std::u32string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char32_t expected, char32_t c) {
           return c == expected || (c == kLongS && expected == 's');
         });
}

bool is_other(char32_t c) {
  return !is_white_space(c) && !is_letter(c) && !is_number(c) && c != kIotaSubscript;
}

template <class Kind>
size_t run_length(std::u32string_view text, const Kind& kind) {
  return static_cast<size_t>(std::find_if_not(text.begin(), text.end(), kind) - text.begin());
}

/// Length of the word that `text` begins with; 0 at a space and what else no word has.
size_t word_length(std::u32string_view text) {
  for (const std::u32string_view token : kEnclosing)
    if (begins_with(text, token)) return token.size();
  if (text[0] == '\'') {
    for (const std::u32string_view ending : kContractions)
      if (begins_with(text.substr(1), ending)) return 1 + ending.size();
  }
  if (is_number(text[0])) return 1;
  const size_t letters = run_length(text, is_letter);
  return letters > 0 ? letters : run_length(text, is_other);
}

/// A byte that is a printable letter in Latin-1 stands for itself, and comes first in the vocabulary.
bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteTables {
  std::array<int64_t, kByteTokens> token = {};
  std::array<uint8_t, kByteTokens> byte = {};
  std::array<char32_t, kByteTokens> letter = {};

  ByteTables() {
    int64_t next = 0;
    for (const bool printable : {true, false}) {
      char32_t substitute = kByteTokens;  // the others are the letters from U+0100 on
      for (int value = 0; value < kByteTokens; ++value) {
        if (stands_for_itself(value) != printable) continue;
        const auto at = static_cast<size_t>(value);
        letter[at] = printable ? static_cast<char32_t>(value) : substitute++;
        token[at] = next;
        byte[static_cast<size_t>(next++)] = static_cast<uint8_t>(value);
      }
    }
  }
};

const ByteTables& byte_tables() {
  static const ByteTables tables;
  return tables;
}

}  // namespace

void visit_words(const std::u32string& caption,
                 const std::function<void(const std::string& word)>& visit) {
  std::u32string_view rest = caption;
  while (!rest.empty()) {
    const size_t length = word_length(rest);
    if (length > 0) visit(utf8(rest.substr(0, length)));
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
}

std::vector<std::string> byte_token_names() {
  std::vector<std::string> names;
  for (const char* end : {"", kEndOfWord}) {
    for (const uint8_t byte : byte_tables().byte)
      names.push_back(utf8(std::u32string(1, byte_tables().letter[byte])) + end);
  }
  return names;
}

std::vector<int64_t> byte_tokens(std::string_view word) {
  std::vector<int64_t> tokens;
  tokens.reserve(word.size());
  for (const char byte : word) tokens.push_back(byte_tables().token[static_cast<uint8_t>(byte)]);
  tokens.back() += kByteTokens;
  return tokens;
}

}  // namespace dalle2
