// SPDX-License-Identifier: MIT
// What a process of its own cannot show; all else of the logger is in tests/e2e/wandb_test.py.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/clean_environment.h"
#include "support/full_disk.h"
#include "tracker/wandb/wandb.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;

const auto kSoon = std::chrono::steady_clock::now() + std::chrono::seconds(30);

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

TEST_CASE("lines that find no room are lost, and later ones are heard again") {
  const test::CapturedLog log;
  ConsoleLines lines(/*most_bytes=*/2 * sizeof(WandbConsoleLine) + 20);
  for (int i = 0; i < 5; ++i) log_info("", "line {}", i);
  CHECK(texts(lines.take()) == std::vector<std::string>{"line 0", "line 1"});
  log_info("", "next");
  CHECK(texts(lines.take()) == std::vector<std::string>{"next"});
}

TEST_CASE("a name that Weights & Biases refuses is told at the start, offline too") {
  test::CleanEnvironment environment({"WANDB_MODE", "WANDB_API_KEY", "WANDB_RUN_ID"});
  test::CleanEnvironment::set("WANDB_MODE", "offline");
  test::CleanEnvironment::set("WANDB_API_KEY", "key\n");  // as a mounted secret ends
  WandbLogConfig config;
  config.wandb_entity = "e";
  config.wandb_project = "p";
  CHECK_NOTHROW(WandbLogger(config).check(kSoon));
  config.wandb_project = "a/b";
  CHECK_THROWS_WITH(WandbLogger(config).check(kSoon),
                    "/tracker/log: wandb_project is \"a/b\": Weights & Biases allows no '/' in it");
  config.wandb_project = "p";
  test::CleanEnvironment::set("WANDB_RUN_ID", "a:b");
  CHECK_THROWS_WITH(WandbLogger(config).check(kSoon),
                    Catch::Contains("WANDB_RUN_ID) is \"a:b\": Weights & Biases allows no ':'"));
}

TEST_CASE("a run that was logged offline without an entity is resumed, with one too") {
  const test::TempDir dir;
  const std::string mark = dir / "auto_resume.json";
  WandbLogConfig config;
  config.auto_resume = true;
  config.wandb_project = "p";
  Loggers({config}).write_auto_resume(mark);
  CHECK(read_file(mark) == R"({"project":"p","logger_type":"WandbLogger"})");
  config.wandb_entity = "e";
  config.wandb_run_id = "r";
  const Loggers online({config});
  online.read_auto_resume(mark);
  CHECK(online.wandb_run() == "e/p/r");
  write_file_atomically(
      mark, R"({"entity": "", "project": "q", "run_id": "s", "logger_type": "WandbLogger"})");
  online.read_auto_resume(mark);
  CHECK(online.wandb_run() == "e/q/s");
  config.resume = true;  // the config says which run, whatever an earlier start was refused
  const Loggers named({config});
  named.read_auto_resume(mark);
  CHECK(named.wandb_run() == "e/q/r");
}

TEST_CASE("the logger's own run is the first that has an id") {
  WandbLogConfig first;
  first.wandb_entity = "e";
  first.wandb_project = "p";
  WandbLogConfig second = first;
  second.wandb_run_id = "second";
  CHECK(Loggers({first}).wandb_run().empty());
  CHECK(Loggers({ConsoleLogConfig{}, second, first}).wandb_run() == "e/p/second");
}

TEST_CASE("a full disk leaves no folder without a record") {
  const test::TempDir dir;
  WandbRun run;
  run.info.path = {"e", "p", "run1"};
  std::string path;
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{3}, rlim_t{30}}) {
    const test::FullDisk full(bytes);
    CHECK_THROWS_AS(make_wandb_folder(dir.path(), run, &path), ResourceError);
    CHECK(fs::is_empty(dir.path()));
  }
  CHECK(make_wandb_folder(dir.path(), run, &path) != nullptr);
  CHECK(fs::exists(path + "/run-run1.wandb"));
}

}  // namespace
}  // namespace dalle2
