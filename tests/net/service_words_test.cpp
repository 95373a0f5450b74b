// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "net/http_call.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"

using namespace dalle2;
using namespace dalle2::test;
using Catch::Matchers::Contains;

TEST_CASE("what a service says comes without our secrets, on one line, and short") {
  CHECK(service_words("No.", {}) == "No");
  CHECK(service_words("a\nb\x1b[1m\x7f", {}) == "a b [1m ");
  CHECK(service_words("canary, acanaryb and canarycanary...", {"", "canary"}) ==
        "***, a***b and ******");
  CHECK(service_words("a*b", {"*"}) == "a***b");  // ends, though what hides it holds it
  // Hidden before it is cut: no half of a secret stays.
  CHECK(service_words(std::string(198, 'x') + "canary", {"canary"}) ==
        std::string(198, 'x') + "** [...]");
  CHECK(service_words(std::string(200, 'x'), {}) == std::string(200, 'x'));
  // A character of two bytes is not cut in its middle.
  CHECK(service_words(std::string(199, 'x') + "\xc3\xa9", {}) == std::string(199, 'x') + " [...]");
}

TEST_CASE("an answer that is no JSON is quoted short, and without a token") {
  const CapturedLog log;
  const std::string token = "hf_" + std::string(30, 'a');
  LoopbackServer server(
      [&](const HttpRequest&) { return http_reply(200, "\"" + token + std::string(9000, 'b')); });
  std::string text;
  try {
    http_json({.url = server.url("/")}, {});
  } catch (const NetworkError& error) {
    text = error.what();
  }
  CHECK_THAT(text, Contains("is not JSON") && !Contains(token.substr(0, 20)));
  CHECK(text.size() < 500);
}
