// SPDX-License-Identifier: MIT
#include "run/commands.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace dalle2::test {
namespace {

std::string refusal(const std::string& command,
                    const OptionFacts& facts,
                    const std::string& where = "") {
  try {
    check_options(command, facts, where);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("an option is refused by its row, with what it needs and what to do") {
  CHECK(refusal("sample", {{"--theta", true}}) ==
        "--theta: needs --from-text\n  Give what it needs, or leave --theta out.");
  CHECK(refusal("sample", {{"--checkpoint", true}, {"--pipeline", true}}) ==
        "--checkpoint: not with --pipeline\n  Leave --checkpoint out.");
  CHECK(refusal("convert", {{"--to", true}, {"--open-clip", true}}) ==
        "--to: not with --open-clip\n  Leave --to out. Convert twice.");
  CHECK(refusal("convert", {{"--lora-scale", true}}) ==
        "--lora-scale: needs --lora or --merge-lora\n  Give what it needs, or leave --lora-scale "
        "out.");
  CHECK(refusal("sample",
                {{"--theta", true}, {"--from-text", true}, {"--text", true}, {"--clip", true}}) ==
        "");
  CHECK(refusal("inspect", {{"--theta", true}}) == "");
}

TEST_CASE("a row waits for the facts that it hangs on") {
  OptionFacts facts = {{"--num", true}, {"--cond-scale", true}};
  CHECK(refusal("sample", facts) == "");
  facts[kOnDecoder] = true;
  CHECK(refusal("sample", facts) == "");
  facts[kUnconditional] = true;
  CHECK(refusal("sample", facts, " on m.pth, a decoder's file") ==
        "--cond-scale on m.pth, a decoder's file: not with an unconditional decoder\n  Leave "
        "--cond-scale out. --num says how many pictures to draw.");
  facts[kOnDecoder] = false;
  CHECK(refusal("sample", facts, " on m.pth, a prior's file") ==
        "--num on m.pth, a prior's file: needs a decoder as --checkpoint\n  Give what it needs, or "
        "leave --num out.");
  // A fact can ask for an option too.
  CHECK(refusal("sample", {{kVariesPicture, true}, {kTakesNoEncodings, false}}) ==
        "a picture to vary (--image with --clip): needs --text or a decoder that takes no text "
        "encodings\n  Give what it needs, or leave a picture to vary (--image with --clip) out.");
}

TEST_CASE("the help of an option ends with its row") {
  CHECK(rule_help({{"--a"}, {"--b", kOnPrior, "--c"}, {"--d"}}) ==
        "; needs --b, a prior as --checkpoint or --c; not with --d");
  CHECK(rule_help({{"--a"}, {"--b"}}) == "; needs --b");
}

}  // namespace
}  // namespace dalle2::test
