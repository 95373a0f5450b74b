// SPDX-License-Identifier: MIT
#include "io/text/clip_vocabulary.h"

#include <cstdlib>
#include <filesystem>
#include <queue>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "base/this_process.h"
#include "base/untrusted_text.h"
#include "io/streams/stream.h"
#include "io/text/caption_text.h"
#include "net/digest.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

constexpr size_t kOpenAiMerges = kClipVocabSize - ClipTokenizer::kLeastVocabSize;
/// Of the lines of OpenAI's merges that are used, each with its line break.
constexpr const char* kOpenAiSha256 =
    "d308b7377a8ceaa9707a21614fe8c831b9196e197b7aeb69833359362907af02";
/// More than any vocabulary; the packed file of OpenAI unfolds to 3 MB.
constexpr uint64_t kMostBytes = uint64_t{1} << 28;
constexpr const char* kAdvice =
    "scripts/clip_vocabulary.sh puts it into the cache folder; or name the file";

std::optional<fs::path> cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && *xdg != '\0') return fs::path(xdg) / "dalle2-train";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return fs::path(home) / ".cache" / "dalle2-train";
  return std::nullopt;
}

/// Where the line after the one at `begin` begins, or the end.
size_t next_line(const std::string& text, size_t begin) {
  const size_t line_break = text.find('\n', begin);
  return line_break == std::string::npos ? text.size() : line_break + 1;
}

std::vector<fs::path> places(const std::string& checkpoint) {
  std::vector<fs::path> found;
  if (!checkpoint.empty()) {
    const fs::path folder = fs::path(checkpoint).parent_path();
    for (const char* name : {kClipVocabularyName, kClipMergesName}) found.push_back(folder / name);
  }
  if (const auto cache = cache_folder()) found.push_back(*cache / kClipVocabularyName);
  return found;
}

using Pair = std::pair<int64_t, int64_t>;

struct PairHash {
  size_t operator()(const Pair& pair) const {
    return std::hash<uint64_t>()((static_cast<uint64_t>(pair.first) << 32U) ^
                                 static_cast<uint64_t>(pair.second));
  }
};

struct CountedWord {
  std::vector<int64_t> tokens;
  int64_t count = 0;
};

/// Counts of all neighbours in the words, kept while they are merged (Sennrich et al. 2016, section 3.2).
class PairCounts {
 public:
  explicit PairCounts(std::vector<CountedWord> words) : words_(std::move(words)) {
    for (size_t i = 0; i < words_.size(); ++i) count(i, +1);
    for (const auto& [pair, seen] : pairs_) push(pair, seen.count);
  }

  /// The most frequent pair that occurs twice or more; of equal ones that of the lowest tokens.
  std::optional<Pair> most_frequent() {
    while (!queue_.empty()) {
      const auto [count, first, second] = queue_.top();
      const Pair pair(-first, -second);
      const int64_t now = pairs_[pair].count;
      if (now == count) return pair;
      queue_.pop();
      push(pair, now);
    }
    return std::nullopt;
  }
  /// The pair is never merged. It has to be the most frequent.
  void bar() { queue_.pop(); }

  void merge(const Pair& pair, int64_t merged) {
    const std::unordered_set<size_t> in_words = std::move(pairs_[pair].words);
    pairs_[pair].words = {};
    for (const size_t i : in_words) {
      count(i, -1);
      std::vector<int64_t>& tokens = words_[i].tokens;
      std::vector<int64_t> next;
      for (size_t at = 0; at < tokens.size(); ++at) {
        const bool is_pair = at + 1 < tokens.size() && Pair(tokens[at], tokens[at + 1]) == pair;
        next.push_back(is_pair ? merged : tokens[at]);
        if (is_pair) ++at;
      }
      tokens = std::move(next);
      count(i, +1);
      for (size_t at = 0; at + 1 < tokens.size(); ++at) {
        const Pair made(tokens[at], tokens[at + 1]);
        if (made.first == merged || made.second == merged) changed_.insert(made);
      }
    }
    for (const Pair& made : changed_) push(made, pairs_[made].count);
    changed_.clear();
  }

 private:
  struct Seen {
    int64_t count = 0;
    std::unordered_set<size_t> words;  // in which it is, or was
  };

  void count(size_t i, int64_t sign) {
    const CountedWord& word = words_[i];
    for (size_t at = 0; at + 1 < word.tokens.size(); ++at) {
      Seen& seen = pairs_[{word.tokens[at], word.tokens[at + 1]}];
      seen.count += sign * word.count;
      if (sign > 0) seen.words.insert(i);
    }
  }
  void push(const Pair& pair, int64_t count) {
    if (count >= 2) queue_.push({count, -pair.first, -pair.second});
  }

  std::vector<CountedWord> words_;
  std::unordered_map<Pair, Seen, PairHash> pairs_;
  std::unordered_set<Pair, PairHash> changed_;
  std::priority_queue<std::tuple<int64_t, int64_t, int64_t>> queue_;
};

}  // namespace

std::string find_clip_vocabulary(const std::optional<std::string>& configured,
                                 const std::string& where,
                                 const std::string& checkpoint) {
  if (configured) {
    if (fs::is_regular_file(*configured)) return *configured;
    throw ConfigError("{}: there is no file {}\n  expected OpenAI's vocabulary, {}; {}",
                      where,
                      printable(*configured),
                      kClipVocabularyName,
                      kAdvice);
  }
  std::vector<std::string> searched;
  for (const fs::path& place : places(checkpoint)) {
    if (fs::is_regular_file(place)) return place.string();
    searched.push_back(printable(place.string()));
  }
  throw ConfigError(
      "{}: the vocabulary of CLIP was not found in{}\n  scripts/clip_vocabulary.sh puts it into the last of "
      "these; or put it there yourself",
      where,
      indented_list(searched));
}

ClipTokenizer read_clip_vocabulary(const std::string& path) {
  const std::string text = read_source(gunzip_source(file_source(path), path), path, kMostBytes);
  // The rest of OpenAI's file is merges that its tokenizer does not use.
  const size_t begin = next_line(text, 0);
  size_t end = begin;
  for (size_t line = 0; line < kOpenAiMerges; ++line) end = next_line(text, end);
  const std::string merges = text.substr(begin, end - begin);
  if (const std::string got = to_hex(sha256(merges)); got != kOpenAiSha256) {
    throw DataError(
        "{}: not the vocabulary of OpenAI's CLIP: the sha256 of its {} merges is {}, expected {}\n "
        " {}",
        path,
        kOpenAiMerges,
        got,
        kOpenAiSha256,
        kAdvice);
  }
  return ClipTokenizer(merges, path);
}

void ClipVocabularyTrainer::add(std::string_view caption) {
  visit_words(clean_caption(caption), kOpenAiWords, [&](const std::string& word) {
    if (word != kOpenAiWords.start && word != kOpenAiWords.end) ++words_[word];
  });
}

std::string ClipVocabularyTrainer::merges(int64_t vocab_size) const {
  if (vocab_size < ClipTokenizer::kLeastVocabSize) {
    throw ConfigError("a vocabulary of {} tokens: expected {} or more, which the bytes alone need",
                      vocab_size,
                      ClipTokenizer::kLeastVocabSize);
  }
  if (words_.empty()) throw DataError("no caption has a word to train a vocabulary on");
  std::vector<CountedWord> words;
  for (const auto& [word, count] : words_) words.push_back({byte_tokens(word), count});
  PairCounts counts(std::move(words));
  std::vector<std::string> names = byte_token_names();
  std::unordered_set<std::string> known(names.begin(), names.end());
  std::string merges;
  while (static_cast<int64_t>(names.size()) + 2 < vocab_size) {
    if (stop_requested() != 0) throw_stopped();
    sign_of_life();
    const auto pair = counts.most_frequent();
    if (!pair) break;
    const std::string& first = names[static_cast<size_t>(pair->first)];
    const std::string& second = names[static_cast<size_t>(pair->second)];
    if (!known.insert(first + second).second) {
      counts.bar();  // two ways to one token: the one that was more frequent stays
      continue;
    }
    merges += first + " " + second + "\n";
    names.push_back(first + second);
    counts.merge(*pair, static_cast<int64_t>(names.size()) - 1);
  }
  return merges;
}

}  // namespace dalle2
