// SPDX-License-Identifier: MIT
#include "io/text/clip_vocabulary.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;

namespace {

/// XDG_CACHE_HOME for one test.
class CacheHome {
 public:
  explicit CacheHome(const std::string& path) {
    if (const char* before = std::getenv(kName)) before_ = before;
    ::setenv(kName, path.c_str(), 1);
  }
  ~CacheHome() {
    if (before_) {
      ::setenv(kName, before_->c_str(), 1);
    } else {
      ::unsetenv(kName);
    }
  }

 private:
  static constexpr const char* kName = "XDG_CACHE_HOME";
  std::optional<std::string> before_;
};

std::string merges_of(const std::vector<std::string>& captions, int64_t vocab_size) {
  ClipVocabularyTrainer trainer;
  for (const std::string& caption : captions) trainer.add(caption);
  return trainer.merges(vocab_size);
}

}  // namespace

TEST_CASE(
    "the vocabulary is the configured file, else that beside the checkpoint, else the cached") {
  const test::TempDir dir;
  const CacheHome cache(dir / "cache");
  const std::string configured = dir / "own.gz", beside = dir / "merges.txt",
                    cached = dir / "cache/dalle2-train" + "/" + kClipVocabularyName;
  std::filesystem::create_directories(dir / "cache/dalle2-train");
  const auto find = [&](const std::optional<std::string>& path) {
    return find_clip_vocabulary(path, "/clip/tokenizer", dir / "clip.safetensors");
  };
  CHECK_THROWS_AS(find({}), ConfigError);
  CHECK_THROWS_WITH(find({}),
                    Contains("/clip/tokenizer: the vocabulary of CLIP was not found in") &&
                        Contains(beside) && Contains(cached) &&
                        Contains("scripts/clip_vocabulary.sh"));
  test::put_file(cached, "");
  CHECK(find({}) == cached);
  test::put_file(beside, "");
  CHECK(find({}) == beside);
  CHECK_THROWS_WITH(find(configured), Contains("there is no file " + configured));
  test::put_file(configured, "");
  CHECK(find(configured) == configured);
}

TEST_CASE("a file of other merges is not taken for OpenAI's vocabulary") {
  const test::TempDir dir;
  const std::string path = dir / "merges.txt";
  for (const char* text : {"", "#version: 0.2", "#version: 0.2\nt h\nth e</w>\n"}) {
    test::put_file(path, text);
    CHECK_THROWS_AS(read_clip_vocabulary(path), DataError);
    CHECK_THROWS_WITH(read_clip_vocabulary(path),
                      Contains(path + ": not the vocabulary of OpenAI's CLIP: the sha256") &&
                          Contains("expected d308b737"));
  }
}

TEST_CASE("the most frequent pair of tokens is merged first, and the order of captions is none") {
  // "lo" 5 times, then "low" at the end 3 times; of "we" and "er</w>", both twice, the lower tokens
  const std::vector<std::string> captions = {"low low low", "lower lower"};
  CHECK(merges_of(captions, 514) == "");
  CHECK(merges_of(captions, 516) == "l o\nlo w</w>\n");
  CHECK(merges_of(captions, 600) == merges_of({"lower", "LOW low", "low  lower"}, 600));
  const std::string all = merges_of(captions, 600);
  const ClipTokenizer tokenizer(all, "own");
  CHECK(tokenizer.encode("low").size() == 1);
  CHECK(tokenizer.encode("lower").size() == 1);
  CHECK(tokenizer.encode("slow").size() == 2);
  CHECK(tokenizer.vocab_size() == 514 + std::count(all.begin(), all.end(), '\n'));
}

TEST_CASE(
    "pairs that are seen once are not merged, and a vocabulary has bytes and a caption at least") {
  CHECK(merges_of({"abc"}, 600) == "");
  CHECK_THROWS_WITH(merges_of({"abc"}, 513), Contains("513 tokens: expected 514 or more"));
  CHECK_THROWS_AS(merges_of({" ", "<|endoftext|>"}, 600), DataError);
}

TEST_CASE("overlapping pairs are counted anew after a merge") {
  // aaaa</w>: the pair "a a" is merged from the left: aa a a</w>; nothing is counted twice
  const std::string merges = merges_of({"aaaa aaaa aaaa"}, 600);
  CHECK(merges == "a a\na a</w>\naa aa</w>\n");
  CHECK(ClipTokenizer(merges, "own").encode("aaaa").size() == 1);
}
