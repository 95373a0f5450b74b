// SPDX-License-Identifier: MIT
#include "base/secret_words.h"

#include <catch2/catch.hpp>

using namespace dalle2;

TEST_CASE("what looks like a token of a service is not shown") {
  const std::string hub = "hf_" + std::string(34, 'A'), key = std::string(40, 'b');
  for (const std::string& secret : {hub,
                                    key,
                                    "wandb_v1_" + std::string(70, 'a'),
                                    std::string("AKIAIOSFODNN7EXAMPLE"),
                                    std::string("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")}) {
    CHECK(without_tokens(secret) == "...");
    CHECK(without_tokens("got [\"" + secret + "\", 1]") == "got [\"...\", 1]");
    CHECK(without_tokens("Unknown: " + secret + ". Must be") == "Unknown: .... Must be");
    CHECK(without_tokens("--set /a=" + secret + ":") == "--set /a=...:");
  }
  CHECK(without_tokens("o/" + hub + "/x") == "o/.../x");
  for (const std::string& text : {std::string(64, 'a'),
                                  std::string(39, 'a'),
                                  "x" + key,
                                  "cache/snapshots/" + key + "/m.pt",
                                  std::string("secrets/hf_token.txt"),
                                  std::string("hf_login"),
                                  std::string("AKIA"),
                                  std::string("/home/User1/a/folder/of/Some/Pictures/01"),
                                  std::string("expected 3 to 4, got 5\n  Do this.")}) {
    CHECK(without_tokens(text) == text);
  }
}
