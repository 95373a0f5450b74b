// SPDX-License-Identifier: MIT
#include "net/wandb_api.h"

#include <catch2/catch.hpp>

#include "support/loopback_server.h"

using namespace dalle2;
using namespace dalle2::test;

namespace {

/// What becomes of an answer to a query.
std::string outcome_of(const std::string& body) {
  LoopbackServer server([&](const HttpRequest&) { return http_reply(200, body); });
  WandbAccess access;
  access.base_url = server.url("");
  access.api_key = "canary";
  const WandbApi api(access, {});
  try {
    return "login of " + api.viewer();
  } catch (const NetworkError& error) {
    CHECK(std::string(error.what()).find("canary") == std::string::npos);
    return may_pass(error) ? "away" : "refused";
  }
}

std::string error(const std::string& message, const std::string& more = "") {
  return R"({"errors": [{"message": ")" + message + "\"" + more + R"(}], "data": {}})";
}

}  // namespace

TEST_CASE("an error of a W&B query passes, unless it says that the query is refused") {
  CHECK(outcome_of(R"({"data": {"viewer": {"entity": "me"}}})") == "login of me");
  for (const char* message : {"Error 1040: Too many connections",
                              "rate limit exceeded",
                              "Internal Server Error (canary)",
                              "context deadline exceeded"}) {
    CHECK(outcome_of(error(message)) == "away");
  }
  for (const char* message : {"project not found",
                              "permission denied",
                              "User is not logged in",
                              "Entity canary does not exist"}) {
    CHECK(outcome_of(error(message)) == "refused");
  }
  CHECK(outcome_of(error("no", R"(, "extensions": {"code": "PERMISSION_ERROR"})")) == "refused");
  CHECK(outcome_of(R"({"data": {"viewer": null}})") == "refused");
}

TEST_CASE("a last row with NaN or an infinity tells how far a run is") {
  const std::string row =
      R"({"a": NaN, "b": -Infinity, "NaN": "NaN", "_step": 7, "_runtime": 2.5})";
  const Json bucket = {{"historyLineCount", 9}, {"historyTail", Json::array({row}).dump()}};
  const Json answer = {{"data", {{"model", {{"bucket", bucket}}}}}};
  LoopbackServer server([&](const HttpRequest&) { return http_reply(200, answer.dump()); });
  WandbAccess access;
  access.base_url = server.url("");
  const std::optional<WandbRunState> state = WandbApi(access, {}).find_run({"e", "p", "r"});
  REQUIRE(state);
  CHECK(state->history_lines == 9);
  CHECK(state->last_step == 7);
  CHECK(state->runtime_seconds == 2.5);
}
