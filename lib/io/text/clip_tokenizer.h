// SPDX-License-Identifier: MIT
// Texts as the tokens of a CLIP, as `clip.tokenize` of OpenAI's package makes them: byte pair encoding
// (Sennrich et al. 2016, arXiv 1508.07909) of the UTF-8 bytes of words.
//
// Numbers of tokens: 256 bytes, the same bytes at the end of a word, the merges in their order, the
// token that begins a text and the one that ends it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dalle2 {

inline constexpr int64_t kByteTokens = 256;
inline constexpr const char* kEndOfWord = "</w>";

/// What stands in a caption for the tokens that begin and end a text.
struct EnclosingWords {
  std::string_view start, end;
};
inline constexpr EnclosingWords kOpenAiWords = {"<|startoftext|>", "<|endoftext|>"};
inline constexpr EnclosingWords kOpenClipWords = {"<start_of_text>", "<end_of_text>"};

/// Calls visit(word) for each word of a cleaned caption, in UTF-8: runs of letters, single numbers, runs
/// of anything else that is no space, the ends of English contractions ("'s"), and the enclosing words.
void visit_words(const std::u32string& caption,
                 const EnclosingWords& enclosing,
                 const std::function<void(const std::string& word)>& visit);

/// Names in files of merges of the 2 kByteTokens tokens before any merge: a printable letter for a byte,
/// with kEndOfWord at the end of a word.
std::vector<std::string> byte_token_names();

/// Tokens of a word before any merge: one a byte, that of the last byte kByteTokens more. @param word not empty
std::vector<int64_t> byte_tokens(std::string_view word);

/// Whether a text stands between the tokens that begin and end one.
enum class TextFrame {
  kEnclosed,  ///< as `clip.tokenize` has it
  kBare,      ///< as `tokenizer.tokenize` of dalle2-pytorch and x-clip
};
/// Tokens that a frame takes of the room for a text.
constexpr int64_t enclosing_tokens(TextFrame frame) {
  return frame == TextFrame::kEnclosed ? 2 : 0;
}

/// Enough of a text to recognise it in a message.
std::string shown_caption(std::string_view text);

class ClipTokenizer {
 public:
  /// Tokens of a vocabulary without merges: the bytes twice, and the two that enclose a text.
  static constexpr int64_t kLeastVocabSize = 2 * kByteTokens + 2;

  /// @param merges a line a merge, "t h" or "th e</w>", in the letters that stand for bytes; a first
  /// line that begins with "#version" or a quotation mark is a comment
  /// @param where precedes the text of errors
  /// @throws DataError naming the line that is no merge, or whose parts no earlier line makes
  ClipTokenizer(std::string_view merges, const std::string& where);

  /// Tokens of a text, without those that enclose it. Cleans it first: clean_caption(). Bytes that are
  /// no UTF-8 become U+FFFD. May be called by several threads.
  std::vector<int64_t> encode(std::string_view text) const;
  /// encode() in its frame, filled up with 0, or cut: the token that ends a text, if there is one, takes the last place.
  /// @param was_cut is set: whether the text had more tokens @return context_length tokens
  std::vector<int64_t> tokenize(std::string_view text,
                                int64_t context_length,
                                TextFrame frame = TextFrame::kEnclosed,
                                bool* was_cut = nullptr) const;

  /// Another library's enclosing words than OpenAI's.
  void set_enclosing(const EnclosingWords& words) { enclosing_ = words; }
  int64_t vocab_size() const;
  int64_t start_token() const { return vocab_size() - 2; }
  int64_t end_token() const { return vocab_size() - 1; }
  /// What the constructor makes an equal tokenizer of: for checkpoints.
  std::string merges() const;

 private:
  struct Tables;
  std::shared_ptr<const Tables> tables_;
  EnclosingWords enclosing_ = kOpenAiWords;
};

}  // namespace dalle2
