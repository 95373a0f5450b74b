// SPDX-License-Identifier: MIT
#include "io/text/clip_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/untrusted_text.h"
#include "io/text/caption_text.h"
#include "io/text/unicode.h"

namespace dalle2 {
namespace {

/// Endings that are words of their own, after an apostrophe.
constexpr std::string_view kContractions[] = {"s", "t", "re", "ve", "m", "ll", "d"};

// OpenAI's pattern ignores case. The first equals the letter s but for it; the second is a mark that
// equals a letter but for it, and so is neither a letter nor anything else.
constexpr char32_t kLongS = 0x17F, kIotaSubscript = 0x345;

bool begins_with(std::u32string_view text, std::string_view word) {
  return text.size() >= word.size() &&
         std::equal(word.begin(), word.end(), text.begin(), [](char expected, char32_t c) {
           return c == static_cast<char32_t>(expected) || (c == kLongS && expected == 's');
         });
}

bool is_other(char32_t c) {
  return !is_white_space(c) && !is_letter(c) && !is_number(c) && c != kIotaSubscript;
}

template <class Kind>
size_t run_length(std::u32string_view text, const Kind& kind) {
  return static_cast<size_t>(std::ranges::find_if_not(text, kind) - text.begin());
}

/// Length of the word that `text` begins with; 0 at a space and what else no word has.
size_t word_length(std::u32string_view text, const EnclosingWords& enclosing) {
  for (const std::string_view word : {enclosing.start, enclosing.end})
    if (begins_with(text, word)) return word.size();
  if (text[0] == '\'') {
    for (const std::string_view ending : kContractions)
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

constexpr size_t kMostTokens = size_t{1} << 24;
using Numbers = std::unordered_map<std::string, int64_t>;  // of tokens by their names

uint64_t pair_key(int64_t first, int64_t second) {
  return (static_cast<uint64_t>(first) << 32U) | static_cast<uint64_t>(second);
}

}  // namespace

void visit_words(const std::u32string& caption,
                 const EnclosingWords& enclosing,
                 const std::function<void(const std::string& word)>& visit) {
  std::u32string_view rest = caption;
  while (!rest.empty()) {
    const size_t length = word_length(rest, enclosing);
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

struct ClipTokenizer::Tables {
  std::vector<std::string> names;                // of each token but the last two, as in files
  std::vector<bool> ends_word;                   // the same
  std::unordered_map<uint64_t, int64_t> merged;  // of a pair of tokens; the lower, the sooner

  Tables() : names(byte_token_names()), ends_word(2 * kByteTokens) {
    std::fill(ends_word.begin() + kByteTokens, ends_word.end(), true);
  }

  /// @return what is wrong with the line, or nullptr
  const char* add_merge(std::string_view line, Numbers& numbers);
  void merge_all(std::vector<int64_t>& tokens) const;
};

const char* ClipTokenizer::Tables::add_merge(std::string_view line, Numbers& numbers) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return "expected two tokens with a space between";
  const auto first = numbers.find(std::string(line.substr(0, space)));
  const auto second = numbers.find(std::string(line.substr(space + 1)));
  if (first == numbers.end() || second == numbers.end())
    return "expected two tokens that earlier lines make";
  const auto a = static_cast<size_t>(first->second), b = static_cast<size_t>(second->second);
  if (ends_word[a]) return "nothing can follow the end of a word";
  if (names.size() >= kMostTokens) return "there are too many lines";
  const auto number = static_cast<int64_t>(names.size());
  merged.emplace(pair_key(first->second, second->second), number);
  names.push_back(names[a] + names[b]);
  if (!numbers.emplace(names.back(), number).second) return "an earlier line makes the same token";
  ends_word.push_back(ends_word[b]);
  return nullptr;
}

/// As Sennrich et al. have it: the pair of the earliest line is merged everywhere, then that of the next.
void ClipTokenizer::Tables::merge_all(std::vector<int64_t>& tokens) const {
  constexpr int64_t kNone = INT64_MAX;
  const auto merged_at = [&](size_t i) {
    const auto found =
        i + 1 < tokens.size() ? merged.find(pair_key(tokens[i], tokens[i + 1])) : merged.end();
    return found == merged.end() ? kNone : found->second;
  };
  std::vector<int64_t> next(tokens.size());  // what each token and the one behind it make
  for (size_t i = 0; i < tokens.size(); ++i) next[i] = merged_at(i);
  while (!tokens.empty()) {
    const int64_t first = *std::ranges::min_element(next);
    if (first == kNone) return;
    size_t kept = 0;
    std::vector<size_t> made;
    for (size_t i = 0; i < tokens.size(); ++kept) {
      const bool is_pair = next[i] == first;
      if (is_pair) made.push_back(kept);
      tokens[kept] = is_pair ? first : tokens[i];
      next[kept] = next[i];
      i += is_pair ? 2 : 1;
    }
    tokens.resize(kept);
    next.resize(kept);
    for (const size_t i : made) {
      next[i] = merged_at(i);
      if (i > 0) next[i - 1] = merged_at(i - 1);
    }
  }
}

std::string shown_caption(std::string_view text) {
  constexpr size_t kShownLetters = 100;
  return one_line(as_utf8(text.substr(0, kShownLetters))) +
         (text.size() > kShownLetters ? "..." : "");
}

ClipTokenizer::ClipTokenizer(std::string_view merges, const std::string& where) {
  auto tables = std::make_shared<Tables>();
  Numbers numbers;
  for (const std::string& name : tables->names)
    numbers.emplace(name, static_cast<int64_t>(numbers.size()));
  for (size_t line = 1; !merges.empty(); ++line) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    const std::string_view text = merges.substr(0, end);
    merges.remove_prefix(std::min(end + 1, merges.size()));
    const bool is_comment = line == 1 && (text.starts_with("#version") || text.starts_with('"'));
    if (is_comment) continue;
    if (const char* fault = tables->add_merge(text, numbers))
      throw DataError("{}: line {}, \"{}\": {}", where, line, shown_caption(text), fault);
  }
  tables_ = std::move(tables);
}

int64_t ClipTokenizer::vocab_size() const {
  return static_cast<int64_t>(tables_->names.size()) + 2;
}

std::vector<int64_t> ClipTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> tokens;
  visit_words(clean_caption(text), enclosing_, [&](const std::string& word) {
    if (word == enclosing_.start || word == enclosing_.end) {
      tokens.push_back(word == enclosing_.start ? start_token() : end_token());
      return;
    }
    std::vector<int64_t> of_word = byte_tokens(word);
    tables_->merge_all(of_word);
    tokens.insert(tokens.end(), of_word.begin(), of_word.end());
  });
  return tokens;
}

std::vector<int64_t> ClipTokenizer::tokenize(std::string_view text,
                                             int64_t context_length,
                                             TextFrame frame,
                                             bool* was_cut) const {
  const bool is_enclosed = frame == TextFrame::kEnclosed;
  D2_CHECK(context_length >= enclosing_tokens(frame),
           "a context of {} tokens has no room for a text",
           context_length);
  std::vector<int64_t> tokens = encode(text);
  if (is_enclosed) {
    tokens.insert(tokens.begin(), start_token());
    tokens.push_back(end_token());
  }
  const auto length = static_cast<size_t>(context_length);
  if (was_cut != nullptr) *was_cut = tokens.size() > length;
  if (is_enclosed && tokens.size() > length) tokens[length - 1] = end_token();
  tokens.resize(length, 0);
  return tokens;
}

std::string ClipTokenizer::merges() const {
  constexpr size_t kFirst = 2 * kByteTokens;
  std::vector<std::string> lines(tables_->names.size() - kFirst);
  for (const auto& [key, token] : tables_->merged) {
    const auto first = static_cast<size_t>(key >> 32U), second = static_cast<size_t>(key & ~0U);
    lines[static_cast<size_t>(token) - kFirst] =
        tables_->names[first] + " " + tables_->names[second] + "\n";
  }
  return fmt::format("{}", fmt::join(lines, ""));
}

}  // namespace dalle2
