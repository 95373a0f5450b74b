// SPDX-License-Identifier: MIT
// Where the merges of a CLIP's tokenizer come from: the file of OpenAI's vocabulary, or captions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "io/text/clip_tokenizer.h"

namespace dalle2 {

/// Names of the file of OpenAI's vocabulary, in the packages that carry it and beside checkpoints of
/// Hugging Face.
inline constexpr const char* kClipVocabularyName = "bpe_simple_vocab_16e6.txt.gz";
inline constexpr const char* kClipMergesName = "merges.txt";
/// Tokens of OpenAI's vocabulary.
inline constexpr int64_t kClipVocabSize = 49408;

/// Finds the file of OpenAI's vocabulary: `configured` if it is given; else beside the checkpoint; else
/// in ~/.cache/dalle2-train (or that of XDG_CACHE_HOME), where scripts/clip_vocabulary.sh puts it.
/// @param where the config key, for messages @param checkpoint path of a CLIP's file, or empty
/// @throws ConfigError if it is nowhere, with all places that were searched and what to do
std::string find_clip_vocabulary(const std::optional<std::string>& configured,
                                 const std::string& where,
                                 const std::string& checkpoint = "");

/// Reads that file, packed or not. @throws DataError if the sha256 of its merges is not that of
/// OpenAI's vocabulary: tokens would mean other words
ClipTokenizer read_clip_vocabulary(const std::string& path);

/// A vocabulary of one's own from captions: the pair of tokens that is most frequent in them is merged,
/// again and again. The same captions in any order give the same vocabulary.
class ClipVocabularyTrainer {
 public:
  /// Cleans the caption as ClipTokenizer does and counts its words.
  void add(std::string_view caption);
  /// Merges for a vocabulary of `vocab_size` tokens, or fewer if there is nothing left to merge.
  /// @throws ConfigError for less than ClipTokenizer::kLeastVocabSize, DataError without a word
  std::string merges(int64_t vocab_size) const;

 private:
  std::unordered_map<std::string, int64_t> words_;  // how often
};

}  // namespace dalle2
