// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "tracker/log/follower.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

using Catch::Contains;

/// A run that logs to the console and to event files.
struct TwoLoggers : test::Run {
  ConsoleLogConfig console;
  TensorboardLogConfig tensorboard;

  TwoLoggers() {
    tensorboard.log_dir = "boards";
    config.overwrite_data_path = true;
    load("latest.pth", /*only_auto_resume=*/true);
  }
  std::unique_ptr<Tracker> start() {
    config.log = std::vector<LogConfig>{console, tensorboard};
    return Run::start();
  }
};

TEST_CASE("several loggers get the same records, and a line is printed once") {
  TwoLoggers run;
  run.tensorboard.verbose = true;
  const auto tracker_held = run.start();
  Tracker& tracker = *tracker_held;
  tracker.log({{"loss", 0.5}}, 7);
  CHECK(run.log.count("step 7  loss 0.5") == 1);
  CHECK(std::filesystem::exists("boards"));
  CHECK(tracker.prints_records());
}

TEST_CASE("one logger that resumes by itself is enough, and the mark holds all of them") {
  TwoLoggers run;
  run.tensorboard.auto_resume = true;
  test::save(*run.start(), 10);
  CHECK(read_file("data/auto_resume.json") ==
        R"({"loggers":[{"logger_type":"ConsoleLogger"},{"log_dir":"boards",)"
        R"("logger_type":"TensorboardLogger"}]})");
  run.tensorboard.log_dir = "elsewhere";
  run.start();
  CHECK_FALSE(std::filesystem::exists("elsewhere"));
}

TEST_CASE("a logger may be added to a run that goes on, but none left out") {
  TwoLoggers run;
  run.console.auto_resume = true;
  run.auto_resume(true);
  run.config.load.reset();
  test::save(*run.Run::start(), 10);
  CHECK(read_file("data/auto_resume.json") == R"({"logger_type":"ConsoleLogger"})");
  run.start();
  CHECK(run.log.count("TensorboardLogger: not of the earlier starts") == 1);
  run.auto_resume(true);
  CHECK_THROWS_WITH(run.Run::start(),
                    Contains("in the auto_resume file is TensorboardLogger but the current logger "
                             "is ConsoleLogger"));
  test::put("data/auto_resume.json", R"({"loggers": [{"logger": "ConsoleLogger"}]})");
  CHECK_THROWS_WITH(run.start(), Contains("expected a JSON object with \"logger_type\""));
}

}  // namespace
}  // namespace dalle2
