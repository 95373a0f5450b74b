// SPDX-License-Identifier: MIT
#include "io/text/clip_tokenizer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include <chrono>
#include <filesystem>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "io/text/clean_caption.h"
#include "io/text/clip_vocabulary.h"
#include "io/text/unicode.h"
#include "support/fixture_folder.h"

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
  CHECK(tokenizer.tokenize("The hat", 7, LongText::kRefuse) ==
        Tokens{515, 513, 71, 514, 516, 0, 0});
  CHECK(tokenizer.tokenize("", 3, LongText::kRefuse) == Tokens{515, 516, 0});
}

TEST_CASE("a long text is refused with its number of tokens, or cut with the token that ends it") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.tokenize("the hat", 4, LongText::kCut) == Tokens{515, 513, 71, 516});
  CHECK_THROWS_AS(tokenizer.tokenize("the hat", 4, LongText::kRefuse), DataError);
  CHECK_THROWS_WITH(
      tokenizer.tokenize("the hat", 4, LongText::kRefuse),
      Contains("the text \"the hat\" has 5 tokens") && Contains("expected 4 at most"));
  CHECK_NOTHROW(tokenizer.tokenize("the hat", 5, LongText::kRefuse));
  bool was_cut = false;
  tokenizer.tokenize("the hat", 4, LongText::kCut, TextFrame::kEnclosed, &was_cut);
  CHECK(was_cut);
  tokenizer.tokenize("the hat", 5, LongText::kCut, TextFrame::kEnclosed, &was_cut);
  CHECK_FALSE(was_cut);
}

TEST_CASE("a bare text has no tokens that enclose it, and loses its end if it is long") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.tokenize("the hat", 5, LongText::kRefuse, TextFrame::kBare) ==
        Tokens{513, 71, 514, 0, 0});
  CHECK(tokenizer.tokenize("", 1, LongText::kRefuse, TextFrame::kBare) == Tokens{0});
  CHECK(tokenizer.tokenize("the hat", 2, LongText::kCut, TextFrame::kBare) == Tokens{513, 71});
  CHECK_THROWS_WITH(tokenizer.tokenize("the hat", 2, LongText::kRefuse, TextFrame::kBare),
                    Contains("the text \"the hat\" has 3 tokens: expected 2 at most"));
}

TEST_CASE("what encloses a text is one token inside it as well") {
  const ClipTokenizer tokenizer(kFewMerges, "few");
  CHECK(tokenizer.encode("<|StartOfText|><|endoftext|>") == Tokens{515, 516});
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
    try {
      ClipTokenizer(merges, "f.txt");
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(refusal("#version: 0.2\nt h\nthe\n"),
             Contains("f.txt: line 3, \"the\": expected two tokens with a space between"));
  CHECK_THAT(refusal("th e\n"), Contains("line 1") && Contains("that earlier lines make"));
  CHECK_THAT(refusal("t h\nt h\n"), Contains("line 2") && Contains("makes the same token"));
  CHECK_THAT(refusal("t</w> h\n"), Contains("nothing can follow the end of a word"));
  CHECK_THAT(refusal("t h\n\n"), Contains("line 2, \"\""));
  CHECK_THAT(refusal("\xff\x1b h\n"), Contains("\\x1b"));
  CHECK(refusal("t h") == "accepted");
  CHECK(refusal("") == "accepted");
}
