// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/timer.h"
#include "io/formats/event_file.h"
#include "io/pictures/image.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
  return files;
}

/// A run that logs to tensorboard.
struct TensorboardRun : test::Run {
  TensorboardLogConfig tensorboard;

  static void end(Tracker& tracker) {
    tracker.finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
  }

  std::unique_ptr<Tracker> start() {
    config.overwrite_data_path = true;
    config.log = LogConfig(tensorboard);
    return Run::start();
  }
};

TEST_CASE("the tensorboard logger writes numbers, texts, pictures and captions as events") {
  TensorboardRun run;
  const auto tracker = run.start();
  tracker->log({{"Epoch", int64_t{3}}, {"loss", 0.5}, {"kind", std::string("warm")}}, 40);
  const std::string png = encode_png({1, 1, {1, 2, 3}});
  tracker->log_images({{png, "a cat"}, {png, ""}}, "Train Samples", 40);
  tracker->log_error("disk full");
  run.end(*tracker);
  const std::vector<std::string> files = event_files("data/tensorboard");
  REQUIRE(files.size() == 1);
  const std::string events = read_file(files[0]);
  EventSummary record, pictures;
  record.add_scalar("Epoch", 3);
  record.add_scalar("loss", 0.5);
  record.add_text("kind", "warm");
  pictures.add_image("Train Samples/0", png);
  pictures.add_image("Train Samples/1", png);
  pictures.add_text("Train Samples/captions", "- 0: a cat\n");
  CHECK_THAT(events,
             Contains(record.bytes()) && Contains(pictures.bytes()) && Contains("disk full"));
  CHECK(fs::exists("data/log.jsonl"));
  CHECK(fs::exists("data/images/40_Train Samples_0.png"));
  CHECK(run.log.count("tensorboard --logdir data/tensorboard") == 1);
  CHECK(run.log.count("loss 0.5") == 0);  // not verbose
  CHECK_FALSE(tracker->prints_records());
}

/// The mark at which TensorBoard forgets a step and what comes after it.
std::string start_at(char step) {
  return std::string("\x10") + step + "\x3a\x02\x08\x01";  // step, session log, START
}

/// A run that resumes from its checkpoint.
struct ResumingTensorboardRun : TensorboardRun {
  ResumingTensorboardRun() { tensorboard.auto_resume = true; }
  /// Logs steps until before `end`, and saves before `saved`.
  void log(int64_t first, int64_t end, int64_t saved) {
    const auto tracker = start();
    for (int64_t step = first; step < end; ++step) {
      if (step == saved) test::save(*tracker, 10 * step);
      tracker->log({{"loss", 0.5}}, step);
    }
    TensorboardRun::end(*tracker);
  }
};

TEST_CASE("a resumed run takes back the steps that it does again, and nothing before") {
  ResumingTensorboardRun run;
  run.log(1, 8, /*saved=*/5);
  run.log(5, 9, /*saved=*/0);
  std::vector<std::string> files = event_files("data/tensorboard");
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 2);
  EventSummary point;
  point.add_scalar("loss", 0.5);
  // Of the last file: the mark, and the steps from 5 on.
  const std::string last = read_file(files.back());
  CHECK_THAT(last, Contains(start_at(5)));
  size_t points = 0;
  for (size_t at = last.find(point.bytes()); at != std::string::npos;
       at = last.find(point.bytes(), at + 1))
    ++points;
  CHECK(points == 4);
  CHECK(read_file(files.front()).find(start_at(1)) == std::string::npos);
}

TEST_CASE("what is kept of the first step that is done again is shown once, behind the mark") {
  ResumingTensorboardRun run;
  {
    const auto tracker = run.start();
    tracker->log({{"kept", 0.25}}, 5);
    test::save(*tracker, 50);
    tracker->log({{"loss", 0.5}}, 5);
    tracker->log({{"loss", 0.5}}, 6);
    TensorboardRun::end(*tracker);
  }
  {
    const auto tracker = run.start();
    tracker->log({{"loss", 0.75}}, 5);
    TensorboardRun::end(*tracker);
  }
  std::vector<std::string> files = event_files("data/tensorboard");
  std::sort(files.begin(), files.end());
  EventSummary kept, passed_over, again;
  kept.add_scalar("kept", 0.25);
  passed_over.add_scalar("loss", 0.5);
  again.add_scalar("loss", 0.75);
  CHECK_THAT(read_file(files.back()),
             Contains(start_at(5)) && Contains(kept.bytes()) && Contains(again.bytes()) &&
                 !Contains(passed_over.bytes()));
}

TEST_CASE(
    "without its cursor, or with an older one, the board gets lines again and takes them back") {
  ResumingTensorboardRun run;
  run.log(1, 8, /*saved=*/5);
  fs::remove("data/followers.json");
  run.log(5, 6, /*saved=*/0);
  std::vector<std::string> files = event_files("data/tensorboard");
  std::sort(files.begin(), files.end());
  REQUIRE(files.size() >= 2);
  CHECK_THAT(read_file(files[1]), Contains(start_at(1)));
}

TEST_CASE("a resumed run logs where its mark says, not where the config says, and says so") {
  TensorboardRun run;
  run.tensorboard.auto_resume = true;
  run.tensorboard.log_dir = "boards/first";
  run.load("latest.pth", /*only_auto_resume=*/true);
  {
    const auto first = run.start();
    first->log({{"loss", 0.5}}, 1);
    test::save(*first, 10);
  }
  const std::string mark = R"({"log_dir":"boards/first","logger_type":"TensorboardLogger"})";
  CHECK(read_file("data/auto_resume.json") == mark);
  run.tensorboard.log_dir = "boards/second";
  run.log.clear();
  const auto second = run.start();
  second->log({{"loss", 0.25}}, 2);
  run.end(*second);
  CHECK(event_files("boards/first").size() >= 2);
  CHECK_FALSE(fs::exists("boards/second"));
  CHECK(read_file("data/auto_resume.json") == mark);
}

TEST_CASE("an unknown attribute in the mark and an empty one are ignored") {
  TensorboardRun run;
  run.tensorboard.auto_resume = true;
  test::save(*run.start(), 10);
  std::ofstream("data/auto_resume.json") << R"({"run_id": 3, "logger_type": "TensorboardLogger"})";
  run.start();
  CHECK(read_file("data/auto_resume.json") == R"({"logger_type":"TensorboardLogger"})");
  std::ofstream("data/auto_resume.json")
      << R"({"log_dir": "", "logger_type": "TensorboardLogger"})";
  run.start();
  CHECK(read_file("data/auto_resume.json") == R"({"logger_type":"TensorboardLogger"})");
}

TEST_CASE("a folder of events that cannot be made ends the start") {
  TensorboardRun run;
  std::ofstream("boards") << "a file";
  run.tensorboard.log_dir = "boards/mine";
  const Timer timer;
  CHECK_THROWS_WITH(run.start(), "boards/mine: the folder cannot be made: Not a directory");
  CHECK(timer.seconds() < 5);  // nothing is waited for that has not begun
}

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
  const auto tracker = run.start();
  tracker->log({{"loss", 0.5}}, 7);
  CHECK(run.log.count("step 7  loss 0.5") == 1);
  CHECK(std::filesystem::exists("boards"));
  CHECK(tracker->prints_records());
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
