// SPDX-License-Identifier: MIT
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "support/captured_log.h"
#include "support/seconds_of.h"
#include "tracker/log/loggers.h"
#include "tracker/log/queued_logger.h"
#include "tracker/starting.h"

namespace dalle2 {
namespace {

using Catch::Contains;

/// What a logger was given, and whether it can take it.
struct Notes {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = true;  // else a call waits until it is, or for the deadline
  bool fails = false;
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::vector<std::string> lines;

  void add(const std::string& line) {
    std::unique_lock lock(mutex);
    while (!open && std::chrono::steady_clock::now() < deadline) {
      opened.wait_for(lock, std::chrono::milliseconds(5));
    }
    if (fails) throw NetworkError("the service is away");
    lines.push_back(line);
  }
  void set_open(bool value) {
    const std::lock_guard lock(mutex);
    open = value;
    opened.notify_all();
  }
  std::vector<std::string> all() {
    const std::lock_guard lock(mutex);
    return lines;
  }
};

class NotingLogger : public Logger {
 public:
  explicit NotingLogger(Notes& notes) : Logger(false), notes_(notes) {}
  std::string type_name() const override { return "NotingLogger"; }
  void init(const RunFacts& facts) override { notes_.add("init " + facts.config); }
  void log(const LogRecord& record, const LogMoment& moment) override {
    notes_.add(record.at(0).first + " " + std::to_string(moment.step));
  }
  void log_images(const std::vector<StoredImage>& images,
                  const std::string& section,
                  const LogMoment&) override {
    notes_.add(section + " " + *images.at(0).png);
  }
  void log_error(const std::string& message, const LogMoment&) override { notes_.add(message); }
  void log_file(const std::string& name, const std::string&) override { notes_.add(name); }
  void set_deadline(Deadline deadline) override {
    const std::lock_guard lock(notes_.mutex);
    notes_.deadline = deadline;
  }
  void finish(const RunEnd& end) override { notes_.add("end " + std::to_string(end.exit_code)); }
  bool prints_records() const override { return false; }
  std::map<std::string, std::string> resume_data() const override { return {}; }
  bool set_attribute(const std::string&, const std::string&) override { return false; }

 private:
  Notes& notes_;
};

Loggers queued(Notes& notes, QueueLimits limits = {}) {
  std::vector<std::unique_ptr<Logger>> list;
  list.push_back(std::make_unique<QueuedLogger>(std::make_unique<NotingLogger>(notes), limits));
  return Loggers(std::move(list));
}

TEST_CASE("a queued logger gets everything, in order, and owns what waits") {
  test::CapturedLog log;
  Notes notes;
  Loggers loggers = queued(notes);
  loggers.init({.config = "{}"});
  notes.set_open(false);
  loggers.log({{"loss", 0.5}}, {}, {.step = 3});
  {
    auto png = std::make_shared<const std::string>("picture");
    loggers.log_images({{"images/a.png", "a cat", png}}, "Samples", {.step = 3});
  }
  loggers.log_error("disk full", {.step = 4});
  loggers.log_file("decoder_config.json", "{}");
  notes.set_open(true);
  loggers.finish({.outcome = RunEnd::Outcome::kDone, .exit_code = 0}, 10);
  CHECK(notes.all() ==
        std::vector<std::string>{
            "init {}", "loss 3", "Samples picture", "disk full", "decoder_config.json", "end 0"});
  CHECK(log.count("lost") == 0);
  CHECK(log.count("disk full") == 1);  // printed once, whatever the loggers
}

TEST_CASE("a logger that is stuck holds up nobody, and what does not fit is lost and counted") {
  test::CapturedLog log;
  Notes notes;
  Loggers loggers = queued(notes, {.most_items = 3});
  loggers.init({});
  notes.set_open(false);
  loggers.log({{"first", 0.5}}, {}, {.step = 1});
  while (true) {  // until the thread has taken the first
    loggers.log({{"next", 0.5}}, {}, {.step = 2});
    if (log.count("no room for more") > 0) break;
  }
  const double seconds = test::seconds_of([&] {
    for (int i = 0; i < 1000; ++i) loggers.log({{"more", 0.5}}, {}, {.step = 3});
  });
  CHECK(seconds < 0.5);
  CHECK(log.count("no room for more") == 1);
  notes.set_open(true);
  loggers.finish({.exit_code = 1}, 10);
  CHECK(notes.all().back() == "end 1");
  CHECK(notes.all().size() <= 6);
  CHECK(log.count("sending what is left") == 0);  // it took no time
  CHECK(log.count("NotingLogger: 1,00") == 1);    // 1,000 and the first ones
}

TEST_CASE("too many bytes are too much, too") {
  test::CapturedLog log;
  Notes notes;
  Loggers loggers = queued(notes, {.most_bytes = 10'000});
  loggers.init({});
  const auto large = std::make_shared<const std::string>(20'000, 'x');
  loggers.log_images({{"images/a.png", "", large}}, "Samples", {});
  loggers.log({{"loss", 0.5}}, {}, {.step = 1});
  loggers.finish({.exit_code = 0}, 10);
  CHECK(notes.all() == std::vector<std::string>{"init {}", "loss 1", "end 0"});
  CHECK(log.count("NotingLogger: 1 record lost") == 1);
}

TEST_CASE("a stuck logger ends by its deadline, and still hears how the run ended") {
  test::CapturedLog log;
  Notes notes;
  Loggers loggers = queued(notes, {.grace_seconds = 0, .notice_seconds = 0.05});
  loggers.init({});
  notes.set_open(false);
  for (int i = 0; i < 10; ++i) loggers.log({{"loss", 0.5}}, {}, {.step = i});
  const double seconds = test::seconds_of([&] { loggers.finish({.exit_code = 75}, 0.3); });
  CHECK(seconds >= 0.3);
  CHECK(seconds < 2);
  CHECK(notes.all().back() == "end 75");
  CHECK(log.count("sending what is left, 0 s at most") == 1);
  CHECK(log.count("NotingLogger: 9 records lost") == 1);
}

TEST_CASE("what is left at the deadline may still be noted by who can do so at once") {
  test::CapturedLog log;
  Notes notes;
  Loggers loggers = queued(notes);
  loggers.init({});
  notes.set_open(false);
  for (int i = 0; i < 10; ++i) loggers.log({{"loss", 0.5}}, {}, {.step = i});
  loggers.finish({.exit_code = 75}, 0.1);
  CHECK(notes.all().size() == 12);
  CHECK(log.count("lost") == 0);
}

TEST_CASE("a logger that fails loses its records, and the others get theirs") {
  test::CapturedLog log;
  for (const bool in_queue : {true, false}) {
    Notes broken, good;
    std::vector<std::unique_ptr<Logger>> list;
    list.push_back(std::make_unique<NotingLogger>(broken));
    if (in_queue) list.back() = std::make_unique<QueuedLogger>(std::move(list.back()));
    list.push_back(std::make_unique<NotingLogger>(good));
    Loggers loggers(std::move(list));
    loggers.init({});
    broken.fails = true;
    loggers.log({{"loss", 0.5}}, {}, {.step = 1});
    loggers.log({{"loss", 0.5}}, {}, {.step = 2});
    loggers.finish({.exit_code = 0}, 10);
    CHECK(good.lines == std::vector<std::string>{"init {}", "loss 1", "loss 2", "end 0"});
    CHECK(log.count("a record is lost; the run continues: the service is away") == 1);
    CHECK(log.count("NotingLogger: 3 records lost") == 1);  // the end of the run among them
    log.clear();
  }
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

TEST_CASE("the number of a record rises over resumes") {
  const test::TempDir dir;
  const std::string path = dir / "log.jsonl";
  {
    LogFile log(path);
    CHECK(log.records() == 0);
    log.write({{"loss", 0.5}}, 1);
    log.write_images({}, "Samples", 1);
    CHECK(log.records() == 2);
  }
  test::put(path, read_file(path) + "{\"half");
  test::CapturedLog lines;
  CHECK(LogFile(path).records() == 3);
}

}  // namespace
}  // namespace dalle2
