// SPDX-License-Identifier: MIT
#include "tracker/log/follower.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "io/files/atomic_file.h"
#include "net/http_transfer.h"
#include "support/captured_log.h"
#include "support/seconds_of.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

/// What a service has got, and how it fares with the next calls.
struct Service {
  std::mutex mutex;
  std::vector<int64_t> lines;
  std::deque<std::string> faults;  // "away", "refused", "lost": taken, but the answer is lost
  bool is_away = false;
  std::optional<double> away_at_start;  // for those seconds
  size_t most_lines = 10000;            // of a call
  std::optional<int> exit_code;
  int connections = 0, asked_in_vain = 0;

  void set_away(bool away) {
    const std::lock_guard lock(mutex);
    is_away = away;
  }
  size_t size() {
    const std::lock_guard lock(mutex);
    return lines.size();
  }
};

/// A service that knows how far it is.
class ServiceLogger : public Logger {
 public:
  explicit ServiceLogger(Service& service) : Logger("ServiceLogger"), service_(service) {}
  bool begin(const RunFacts&) override { return true; }
  std::string name() const override { return "Service"; }
  std::string key() const override { return "service run"; }
  std::optional<double> away_seconds() const override { return service_.away_at_start; }
  int64_t connect(const LogCursors&, int64_t) override {
    const std::lock_guard lock(service_.mutex);
    check();
    ++service_.connections;
    return service_.lines.empty() ? 0 : service_.lines.back() + 1;
  }
  void send(const std::vector<JournalLine>& lines) override {
    const std::lock_guard lock(service_.mutex);
    const bool answer_is_lost = !service_.faults.empty() && service_.faults.front() == "lost";
    if (!answer_is_lost) check();
    if (lines.size() > service_.most_lines) throw HttpStatusError(413, "too large");
    for (const JournalLine& line : lines) service_.lines.push_back(line.number);
    if (!answer_is_lost) return;
    service_.faults.pop_front();
    throw UnreachableError("the answer was lost");
  }
  void end(const RunEnd& end) override {
    const std::lock_guard lock(service_.mutex);
    check();
    service_.exit_code = end.exit_code;
  }

 private:
  void check() {
    if (service_.is_away) {
      ++service_.asked_in_vain;
      throw UnreachableError("no answer");
    }
    if (service_.faults.empty() || service_.faults.front() == "lost") return;
    const std::string fault = service_.faults.front();
    service_.faults.pop_front();
    if (fault == "refused") throw HttpStatusError(403, "the login may not write there");
    if (fault == "garbled") throw NetworkError("the answer is not JSON");
    throw UnreachableError("no answer");
  }
  Service& service_;
};

/// A log that is followed.
struct FollowedRun {
  test::TempDir dir;
  test::CapturedLog log;
  LogFile file{dir / "log.jsonl"};
  std::atomic<bool> is_taken_over = false;
  Service service;
  LogCursors cursors{dir / "followers.json"};
  std::mutex mutex;
  std::vector<std::string> errors;
  FollowerTimes times{.first_pause = 0.01, .longest_pause = 0.02};
  std::unique_ptr<Follower> follower;

  void start() {
    follower = std::make_unique<Follower>(
        std::make_shared<ServiceLogger>(service),
        FollowedLog{.file = file,
                    .log_error =
                        [this](const std::string& error) {
                          const std::lock_guard lock(mutex);
                          errors.push_back(error);
                        },
                    .check =
                        [this] {
                          if (is_taken_over) throw ConfigError("another start has taken over");
                        }},
        cursors,
        times);
    follower->connect_now(std::chrono::steady_clock::now() + std::chrono::seconds(5));
    follower->start();
  }
  void write(int64_t lines) {
    for (int64_t i = 0; i < lines; ++i) file.write({{"loss", 0.5}}, file.lines());
  }
  template <class Condition>
  void wait_for(Condition&& is_so) {
    for (int i = 0; i < 1000 && !is_so(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(is_so());
  }
  void end() {
    follower->begin_end({.outcome = RunEnd::Outcome::kDone, .exit_code = 0});
    wait_for([this] { return follower->is_done(); });
    follower.reset();
  }
  void check_each_line_once(int64_t count) {
    REQUIRE(service.lines.size() == static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) CHECK(service.lines[static_cast<size_t>(i)] == i);
  }
};

TEST_CASE("a follower hands over each line once, in order, and how the run ended") {
  FollowedRun run;
  run.write(3);
  run.service.most_lines = 600;
  run.start();
  for (int i = 0; i < 5; ++i) run.write(1);
  run.wait_for([&] { return run.service.size() == 8; });
  CHECK(run.follower->waiting() == 0);
  run.write(2500);  // more than a request takes
  run.end();
  run.check_each_line_once(2508);
  CHECK(run.errors.empty());
  CHECK(run.service.exit_code == 0);
  CHECK(LogCursors(run.dir / "followers.json").furthest("service run")->line == 2508);
}

TEST_CASE(
    "a service that is away for half an hour is asked each minute, told of once, and gets each "
    "line once when it is back") {
  FollowedRun run;
  run.times = {};
  FollowerTimes::Clock::time_point now(std::chrono::hours(1));  // of the follower's thread
  std::atomic<bool> is_over = false;
  int64_t second = 0, waiting = 0;
  bool was_fault = false, was_asked_early = false;
  run.service.away_at_start = 5;
  run.times.now = [&] { return now; };
  // No time passes but here. A line a second, for 40 minutes.
  run.times.wait = [&](auto&, auto& lock, auto most) {
    now += most;
    second =
        std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count() - 3600;
    lock.unlock();
    run.service.set_away(second >= 10 && second < 1810);
    while (second < 2400 && run.file.written() <= second) run.write(1);
    was_asked_early |= second < 5 && run.service.connections > 0;
    if (second == 1809) {
      waiting = run.follower->waiting();
      was_fault = run.follower->last_was_fault();
    }
    if (second >= 2400) {
      is_over = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    lock.lock();
  };
  run.start();
  run.wait_for([&] { return is_over.load(); });
  run.end();
  // After 1, 2, 4, 8, 16 and 32 seconds, then each minute.
  CHECK(run.service.asked_in_vain == 35);
  CHECK(waiting == 1800);
  CHECK(was_fault);
  CHECK(run.log.count("Service: no answer") == 1);
  CHECK_FALSE(was_asked_early);
  CHECK(run.log.count("Service: is back") == 2);
  CHECK(run.errors.empty());
  run.check_each_line_once(2400);
}

TEST_CASE("faults at every call cost no line") {
  FollowedRun run;
  run.service.faults = {"garbled", "away", "lost", "away", "refused", "lost", "away", "away"};
  run.start();
  for (int i = 0; i < 40; ++i) {
    run.write(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  run.end();
  run.check_each_line_once(40);
  CHECK(run.service.faults.empty());
}

TEST_CASE("a refusal at the start ends it, a later one is an error in the log once an hour") {
  FollowedRun run;
  run.service.faults = {"refused"};
  CHECK_THROWS_WITH(run.start(), "the login may not write there");
  run.start();
  {
    const std::lock_guard lock(run.service.mutex);
    for (int i = 0; i < 6; ++i) run.service.faults.emplace_back("refused");
  }
  run.write(1);
  run.wait_for([&] { return run.service.size() == 1; });
  run.end();
  REQUIRE(run.errors.size() == 1);
  CHECK_THAT(run.errors[0], Catch::Contains("Service: the login may not write there"));
}

TEST_CASE("what is left at the end stays for the next start") {
  FollowedRun run;
  run.start();
  run.write(3);
  run.wait_for([&] { return run.service.size() == 3; });
  {
    const std::lock_guard lock(run.service.mutex);
    run.service.is_away = true;
  }
  run.write(2);
  run.follower->begin_end({});
  run.wait_for([&] { return run.follower->last_was_fault(); });
  CHECK_FALSE(run.follower->is_done());
  CHECK(run.follower->waiting() == 2);
  CHECK(test::seconds_of([&] { run.follower.reset(); }) < 1);
  run.start();  // in vain
  CHECK(run.follower->waiting() == 2);
  {
    const std::lock_guard lock(run.service.mutex);  // the attempt of the end takes long
    run.follower->begin_end({});
    CHECK(run.follower->last_was_fault());
  }
  run.follower.reset();
  run.service.is_away = false;
  run.start();
  run.end();
  run.check_each_line_once(5);
}

TEST_CASE("a follower ends without a word when another start has taken the run over") {
  FollowedRun run;
  run.start();
  run.write(1);
  run.wait_for([&] { return run.service.size() == 1; });
  run.is_taken_over = true;
  run.write(1);
  run.follower->begin_end({});
  run.wait_for([&] { return run.follower->is_done(); });
  run.follower.reset();
  CHECK(run.service.size() == 1);
  CHECK_FALSE(run.service.exit_code);
  CHECK(run.errors.empty());
}

TEST_CASE("cursors are hints: a damaged file has none, and what is kept comes back") {
  const test::TempDir dir;
  const std::string path = dir / "followers.json";
  for (const char* content : {"", "[1]", "{\"a\": 3}", "{\"a\": {\"line\": \"x\"}}"}) {
    test::put_file(path, content);
    CAPTURE(content);
    CHECK(LogCursors(path).furthest("a").value_or(LogCursor{}).line == 0);
  }
  LogCursors cursors(path);
  cursors.set("here e/p/one", {.line = 5, .shift = 7});
  cursors.set("other e/p/one", {.line = 9, .shift = 7});
  cursors.set("other e/p/two", {.line = 20});
  cursors.save();
  const LogCursors read(path);
  CHECK(read.furthest("here e/p/one")->shift == 7);
  CHECK(read.furthest("/one")->line == 9);
  CHECK_FALSE(read.furthest("/three"));
  CHECK(read.nearest("here e/p/one")->line == 5);
  CHECK(read.nearest("here e/p/two")->line == 20);
  CHECK_FALSE(read.nearest("here e/p/three"));
}

}  // namespace
}  // namespace dalle2
