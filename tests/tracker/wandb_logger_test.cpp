// SPDX-License-Identifier: MIT
// What a process of its own cannot show; all else of the logger is in tests/e2e/wandb_test.py.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "net/wandb_access.h"
#include "support/captured_log.h"
#include "support/loopback_server.h"
#include "support/seconds_of.h"
#include "support/temp_dir.h"
#include "tracker/log/loggers.h"
#include "tracker/log/queued_logger.h"
#include "tracker/wandb/wandb_logger.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::http_reply;
using test::HttpRequest;

TEST_CASE("netrc: the password of a host, with its port, in quotes or not") {
  const std::string text =
      "# machine a password no\n"
      "machine a login x password 'one'\n"
      "macdef init\ncd a\nmachine b password no\n\n"
      "default login y password two\n"
      "machine b:8080\n  account z\n  password three\n";
  CHECK(netrc_password(text, "a") == "one");
  CHECK(netrc_password(text, "b:8080") == "three");
  CHECK(netrc_password(text, "b") == "two");
  CHECK(netrc_password("machine a password one", "b") == std::nullopt);
  CHECK(netrc_password("", "a") == std::nullopt);
  CHECK(netrc_password("machine a login", "a") == std::nullopt);
}

TEST_CASE("a service that hangs holds up the end of a run until the deadline, and costs nothing") {
  const test::TempDir dir;
  const test::LoopbackServer server([](const HttpRequest& request) {
    if (request.path.ends_with("/file_stream")) return test::HttpReply{.bytes = "", .hang = true};
    return http_reply(200,
                      R"({"data": {"viewer": {"entity": "e"}, "upsertBucket": {"bucket": {}},
                         "createRunFiles": {"files": [
                             {"name": "wandb-metadata.json", "uploadUrl": "/storage"}]}}})");
  });
  ::setenv("WANDB_BASE_URL", server.url("").c_str(), 1);
  ::setenv("WANDB_API_KEY", "key", 1);
  ::setenv("WANDB_DIR", dir.path().c_str(), 1);
  test::CapturedLog log;
  WandbLogConfig config;
  config.wandb_entity = "e";
  config.wandb_project = "p";
  std::vector<std::unique_ptr<Logger>> list;
  list.push_back(std::make_unique<QueuedLogger>(std::make_unique<WandbLogger>(config)));
  Loggers loggers(std::move(list));
  loggers.check();
  loggers.init({});
  for (int64_t i = 0; i < 100; ++i) loggers.log({{"loss", 0.5}}, {}, {.step = i, .number = i});
  const double seconds = test::seconds_of([&] { loggers.finish({.exit_code = 0}, 0.5); });
  for (const char* name : {"WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_DIR"}) ::unsetenv(name);
  CHECK(seconds >= 0.5);
  CHECK(seconds < 3);
  CHECK(log.count("the rest of the run goes into") == 1);
  CHECK(log.count("there is no time left to send it") == 1);
  CHECK(log.count("lost") == 0);
  REQUIRE(fs::exists(dir / "wandb"));
  const fs::path folder = *fs::directory_iterator(dir / "wandb");
  uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".wandb") bytes = entry.file_size();
  }
  CHECK(bytes > 100 * std::string_view("loss0.5step_step_timestamp_runtime").size());
}

}  // namespace
}  // namespace dalle2
