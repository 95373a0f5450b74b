// SPDX-License-Identifier: MIT
// What a process of its own cannot show; all else of the logger is in tests/e2e/wandb_test.py.
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/full_disk.h"
#include "support/loopback_server.h"
#include "support/seconds_of.h"
#include "support/temp_dir.h"
#include "tracker/log/loggers.h"
#include "tracker/log/queued_logger.h"
#include "tracker/wandb/console_lines.h"
#include "tracker/wandb/wandb_folder.h"
#include "tracker/wandb/wandb_logger.h"
#include "tracker/wandb/wandb_mark.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using test::http_reply;
using test::HttpReply;
using test::HttpRequest;

std::vector<std::string> texts(const std::vector<WandbConsoleLine>& lines) {
  std::vector<std::string> texts;
  for (const WandbConsoleLine& line : lines) {
    texts.push_back((line.is_error ? "error: " : "") + line.text);
  }
  return texts;
}

TEST_CASE("what is printed is heard as it stands in a file, from the beginning to the end") {
  const test::CapturedLog log;
  log_info("track", "before");
  {
    ConsoleLines lines, others;
    log_info("track", "{} shards", 3);
    log_warning("data", "https://user:canary@host/ is short\n  Do this.");
    CHECK(texts(lines.take()) ==
          std::vector<std::string>{"[track] 3 shards",
                                   "error: [data] warning: https://host/ is short",
                                   "error:   Do this."});
    CHECK(lines.take().empty());
    CHECK(others.take().size() == 3);
  }
  log_info("track", "after");
  CHECK(log.lines().size() == 4);
}

TEST_CASE("lines that find no room are counted in their place") {
  const test::CapturedLog log;
  ConsoleLines lines(/*most_bytes=*/2 * sizeof(WandbConsoleLine) + 20);
  for (int i = 0; i < 5; ++i) log_info("", "line {}", i);
  CHECK(texts(lines.take()) ==
        std::vector<std::string>{"line 0", "line 1", "(3 lines left out here)"});
  log_info("", "next");
  CHECK(texts(lines.take()) == std::vector<std::string>{"next"});
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

/// A service that takes the first row of a run, and no other one.
HttpReply take_one_row(const HttpRequest& request) {
  static std::atomic<int> requests = 0;
  if (request.path.ends_with("/file_stream")) {
    const bool has_rows = request.body.find("wandb-history.jsonl") != std::string::npos;
    return http_reply(has_rows && ++requests > 1 ? 403 : 200, "{}");
  }
  return http_reply(200,
                    R"({"data": {"viewer": {"entity": "e"}, "upsertBucket": {"bucket": {}},
                       "createRunFiles": {"files": [
                           {"name": "wandb-metadata.json", "uploadUrl": "/storage"}]}}})");
}

TEST_CASE("a name that Weights & Biases refuses is told at the start, offline too") {
  test::CleanEnvironment environment({"WANDB_MODE", "WANDB_API_KEY", "WANDB_RUN_ID"});
  test::CleanEnvironment::set("WANDB_MODE", "offline");
  test::CleanEnvironment::set("WANDB_API_KEY", "key\n");  // as a mounted secret ends
  WandbLogConfig config;
  config.wandb_entity = "e";
  config.wandb_project = "p";
  CHECK_NOTHROW(WandbLogger(config).check());
  config.wandb_project = "a/b";
  CHECK_THROWS_WITH(WandbLogger(config).check(),
                    "/tracker/log: wandb_project is \"a/b\": Weights & Biases allows no '/' in it");
  config.wandb_project = "p";
  test::CleanEnvironment::set("WANDB_RUN_ID", "a:b");
  CHECK_THROWS_WITH(WandbLogger(config).check(),
                    Catch::Contains("WANDB_RUN_ID) is \"a:b\": Weights & Biases allows no ':'"));
}

TEST_CASE("rows that neither the service nor a full disk takes wait for the next start") {
  const test::TempDir dir;
  const test::LoopbackServer server(take_one_row);
  const test::CleanEnvironment environment({"WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_DIR"});
  test::CleanEnvironment::set("WANDB_BASE_URL", server.url(""));
  test::CleanEnvironment::set("WANDB_API_KEY", "key");
  test::CleanEnvironment::set("WANDB_DIR", dir.path());
  test::CapturedLog log;
  WandbLogConfig config;
  config.wandb_entity = "e";
  config.wandb_project = "p";
  config.wandb_run_id = "run1";
  std::vector<std::unique_ptr<Logger>> list;
  list.push_back(std::make_unique<QueuedLogger>(std::make_unique<WandbLogger>(config)));
  Loggers loggers(std::move(list));
  loggers.init({.data_path = dir.path()});
  for (int64_t i = 0; i < 100; ++i) loggers.log({{"loss", 0.5}}, {}, {.step = i, .number = i});
  {
    const test::FullDisk full(4096);  // has room for the head of a folder
    loggers.finish({.exit_code = 0}, 20);
  }
  CHECK(log.count("The next start of the run adds it from log.jsonl") == 1);
  CHECK(log.count("the rest of the run goes into") == 0);
  CHECK(WandbMark(dir / "wandb_mark.json").read("run1")->records == 1);
  CHECK_FALSE(folder_to_sync(dir / "wandb", "run1"));
  CHECK(fs::is_empty(dir / "wandb"));
}

TEST_CASE("a full disk or a kill leaves no folder that waits for its upload without a record") {
  const test::TempDir dir;
  WandbRun run;
  run.info.path = {"e", "p", "run1"};
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{3}, rlim_t{30}}) {
    const test::FullDisk full(bytes);
    CHECK_THROWS_AS(WandbFolder(dir.path(), run), ResourceError);
    CHECK(fs::is_empty(dir.path()));
  }
  const WandbFolder folder(dir.path(), run);
  CHECK(folder_to_sync(dir.path(), "run1") == folder.path());
  fs::resize_file(folder.path() + "/run-run1.wandb", WandbFile::kMarkBytes);
  CHECK_FALSE(folder_to_sync(dir.path(), "run1"));
}

}  // namespace
}  // namespace dalle2
