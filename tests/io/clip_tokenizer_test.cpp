// SPDX-License-Identifier: MIT
#include "io/text/clip_tokenizer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "io/files/atomic_file.h"
#include "io/text/caption_text.h"
#include "io/text/clip_vocabulary.h"
#include "io/text/unicode.h"
#include "support/fixture_folder.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

using namespace dalle2;
using Catch::Contains;
using nlohmann::json;
using Tokens = std::vector<int64_t>;

namespace {

std::string parity_file(const std::string& name) {
  return test::fixture_folder("clip_tokenizer") + "/" + name;
}

json tokenizer_cases() {
  json all = json::parse(read_file(parity_file("cases.json")));
  REQUIRE(all.size() >= 300);
  return all;
}

ClipTokenizer own_tokenizer() {
  return ClipTokenizer(read_file(parity_file("merges.txt")), "merges.txt");
}

/// A little more than the bytes: "th", "the", and "at" at the end of a word.
const char* const kFewMerges = "t h\nth e</w>\na t</w>\n";

}  // namespace

TEST_CASE("captions are cleaned as ftfy and OpenAI's tokenizer clean them", "[parity]") {
  for (const json& one : tokenizer_cases()) {
    const auto text = one.at("text").get<std::string>();
    INFO(json(text).dump(-1, ' ', true));
    CHECK(utf8(clean_caption(text)) == one.at("clean").get<std::string>());
  }
}

TEST_CASE("captions have the tokens of clip-anytorch's tokenizer", "[parity]") {
  const ClipTokenizer tokenizer = own_tokenizer();
  for (const json& one : tokenizer_cases()) {
    const auto text = one.at("text").get<std::string>();
    INFO(json(text).dump(-1, ' ', true));
    CHECK(tokenizer.encode(text) == one.at("tokens").get<Tokens>());
  }
}

TEST_CASE("captions have the tokens of OpenAI's vocabulary, where the file is there", "[parity]") {
  const std::string path = parity_file(kClipVocabularyName);
  if (!std::filesystem::exists(path)) return;  // only beside cases that were drawn afresh
  const ClipTokenizer tokenizer = read_clip_vocabulary(path);
  CHECK(tokenizer.vocab_size() == 49408);
  CHECK(tokenizer.start_token() == 49406);
  for (const json& one : tokenizer_cases()) {
    const auto text = one.at("text").get<std::string>();
    INFO(json(text).dump(-1, ' ', true));
    CHECK(tokenizer.encode(text) == one.at("openai").get<Tokens>());
  }
}

TEST_CASE("a text is enclosed by its two tokens and filled up with 0") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  REQUIRE(tokenizer.vocab_size() == 517);
  // h is token 71, "th" 512, "the</w>" 513, "at</w>" 514; letters at the end of a word are 256 more
  CHECK(tokenizer.tokenize("The hat", 7) == Tokens{515, 513, 71, 514, 516, 0, 0});
  CHECK(tokenizer.tokenize("", 3) == Tokens{515, 516, 0});
}

TEST_CASE("a long text is cut with the token that ends it") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.tokenize("the hat", 4) == Tokens{515, 513, 71, 516});
  bool was_cut = false;
  tokenizer.tokenize("the hat", 4, TextFrame::kEnclosed, &was_cut);
  CHECK(was_cut);
  tokenizer.tokenize("the hat", 5, TextFrame::kEnclosed, &was_cut);
  CHECK_FALSE(was_cut);
}

TEST_CASE("a bare text has no tokens that enclose it, and loses its end if it is long") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.tokenize("the hat", 5, TextFrame::kBare) == Tokens{513, 71, 514, 0, 0});
  CHECK(tokenizer.tokenize("", 1, TextFrame::kBare) == Tokens{0});
  CHECK(tokenizer.tokenize("the hat", 2, TextFrame::kBare) == Tokens{513, 71});
}

TEST_CASE("what encloses a text is one token inside it as well") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.encode("<|StartOfText|><|endoftext|>") == Tokens{515, 516});
  CHECK(tokenizer.encode("<end_of_text>") ==
        Tokens{283, 68, 77, 323, 318, 78, 325, 318, 83, 68, 87, 339, 285});
}

TEST_CASE("open_clip encloses a text by other words, and OpenAI's are text to it") {
  ClipTokenizer tokenizer(kFewMerges, "few");
  tokenizer.set_enclosing(kOpenClipWords);
  CHECK(tokenizer.encode("<Start_of_text><end_of_text>") == Tokens{515, 516});
  CHECK(tokenizer.encode("<|endoftext|>") ==
        Tokens{27, 347, 68, 77, 67, 78, 69, 83, 68, 87, 339, 91, 285});
}

TEST_CASE("a caption that is made to take long is cleaned within a second, and a long one is cut") {
  std::string nested = "&";
  while (nested.size() < 8'000'000) nested += "amp;";
  const auto begin = std::chrono::steady_clock::now();
  CHECK(clean_caption(nested).size() < kMostCaptionBytes);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
  CHECK(utf8(clean_caption("a &amp;amp;amp;amp;amp;lt; b")) == "a < b");
  // 3 bytes each, of which the one at the end does not fit
  std::string letters;
  while (letters.size() <= kMostCaptionBytes) letters += "\u5f62";
  CHECK(clean_caption(letters).size() == kMostCaptionBytes / 3);
  CHECK(utf8(clean_caption(letters)) == letters.substr(0, kMostCaptionBytes / 3 * 3));
}

TEST_CASE("a tokenizer comes back from its merges") {
  const ClipTokenizer own = own_tokenizer();
  const ClipTokenizer again(own.merges(), "again");
  CHECK(again.merges() == own.merges());
  CHECK(again.encode("a photo of a red circle") == own.encode("a photo of a red circle"));
}

TEST_CASE("merges of which nothing can be made are refused by line and reason") {
  const auto refusal = [](const std::string& merges) {
    return test::message_of<DataError>([&] { ClipTokenizer(merges, "f.txt"); });
  };
  CHECK_THAT(refusal("#version: 0.2\nt h\nthe\n"),
             Contains("f.txt: line 3, \"the\": expected two tokens with a space between"));
  CHECK_THAT(refusal("th e\n"), Contains("line 1") && Contains("that earlier lines make"));
  CHECK_THAT(refusal("t h\nt h\n"), Contains("line 2") && Contains("makes the same token"));
  CHECK_THAT(refusal("t</w> h\n"), Contains("nothing can follow the end of a word"));
  CHECK_THAT(refusal("t h\n\n"), Contains("line 2, \"\""));
  CHECK_THAT(refusal("\xff\x1b h\n"), Contains("\\x1b"));
  CHECK(refusal("t h") == "nothing was thrown");
  CHECK(refusal("") == "nothing was thrown");
}

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

TEST_CASE("the vocabulary is the configured file, that beside the checkpoint, or the cached") {
  const test::TempDir dir;
  const CacheHome cache(dir / "cache");
  const std::string configured = dir / "own.gz", beside = dir / "merges.txt",
                    cached = dir / "cache/dalle2-train" + "/" + kClipVocabularyName;
  std::filesystem::create_directories(dir / "cache/dalle2-train");
  const auto find = [&](const std::optional<std::string>& path) {
    return find_clip_vocabulary(path, "/clip/tokenizer", dir / "clip.safetensors");
  };
  CHECK_THAT(test::message_of<ConfigError>([&] { find({}); }),
             Contains("/clip/tokenizer: the vocabulary of CLIP was not found in") &&
                 Contains(beside) && Contains(cached) && Contains("scripts/clip_vocabulary.sh"));
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
    CHECK_THAT(test::message_of<DataError>([&] { read_clip_vocabulary(path); }),
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

TEST_CASE("pairs that are seen once are not merged, and a vocabulary needs a caption") {
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
