// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/stop_signal.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

constexpr const char* kLock = "data/run.lock";

/// An empty data_path "data" in a folder of its own.
struct Place {
  test::TempDir folder;
  test::WorkingDirectory inside{folder.path()};
  test::CapturedLog log;
  Place() { fs::create_directory("data"); }
};

void make_older(const std::string& path, int seconds) {
  struct stat status = {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  timespec times[2] = {status.st_atim, status.st_mtim};
  times[1].tv_sec -= seconds;
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

TEST_CASE("a folder that another program keeps locked is not waited for without end") {
  Place place;
  const int other = ::open("data", O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(other, LOCK_EX) == 0);
  LockTimes times;
  times.folder = std::chrono::milliseconds(100);
  CHECK_THROWS_WITH(RunLock("data", times),
                    Contains(fmt::format("'data' is locked by process {} (flock)", ::getpid())) &&
                        Contains("without `flock`"));
  times.folder = std::chrono::hours(1);
  install_stop_signals();
  std::thread stopper([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(::getpid(), SIGTERM);
  });
  CHECK_THROWS_AS(RunLock("data", times), StoppedError);
  stopper.join();
  clear_stop_request();
  uninstall_stop_signals();
  ::close(other);
  CHECK_NOTHROW(RunLock("data", times));
}

TEST_CASE("a name that the file system does not take asks for a shorter one") {
  Place place;
  CHECK_THROWS_WITH(RunLock(std::string(300, 'x')), Contains("a name may have 255 bytes"));
}

/// A lock of this process with something changed.
void put_lock(const std::function<void(LockOwner&)>& change) {
  LockOwner owner = this_process();
  change(owner);
  write_file_atomically(kLock, lock_text(owner));
}

/// A child that holds the lock, told through a pipe, until it is killed or told to end.
class Holder {
 public:
  Holder() {
    int ready[2], end[2];
    REQUIRE((::pipe(ready) == 0 && ::pipe(end) == 0));
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      ::close(end[1]);
      {
        const RunLock lock("data");
        char letter = 'r';
        if (::write(ready[1], &letter, 1) != 1) ::_exit(1);
        if (::read(end[0], &letter, 1) < 0) ::_exit(1);  // until the parent closes its end
      }
      ::_exit(0);
    }
    ::close(ready[1]);
    ::close(end[0]);
    end_ = end[1];
    char letter = 0;
    REQUIRE(::read(ready[0], &letter, 1) == 1);
    ::close(ready[0]);
  }
  pid_t pid() const { return child_; }
  void end() {
    ::close(end_);
    wait();
  }
  void kill() {
    ::kill(child_, SIGKILL);
    siginfo_t info = {};  // dead, but not yet waited for
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT) == 0);
  }
  void wait() {
    int status = 0;
    REQUIRE(::waitpid(child_, &status, 0) == child_);
  }

 private:
  pid_t child_ = -1;
  int end_ = -1;
};

TEST_CASE("a lock names its process, and is gone with it") {
  Place place;
  {
    const RunLock lock("data");
    const std::string text = read_file(kLock);
    CHECK_THAT(text, Contains("\"pid\":" + std::to_string(::getpid())));
    CHECK_THAT(text, Contains("\"host\":\"" + this_process().host + "\""));
    CHECK(std::distance(fs::directory_iterator("data"), {}) == 1);
  }
  CHECK(fs::is_empty("data"));
  CHECK(place.log.lines().empty());
}

TEST_CASE("a second run is refused as long as the first lives, with process, host and what to do") {
  Place place;
  Holder holder;
  std::string said;
  try {
    const RunLock second("data");
  } catch (const ConfigError& error) {
    said = error.what();
  }
  CHECK_THAT(said,
             Catch::StartsWith("/tracker/data_path: 'data' is in use by process " +
                               std::to_string(holder.pid()) + " on host " + this_process().host +
                               " since 2"));
  CHECK_THAT(
      said,
      Catch::EndsWith("\n  Two runs would overwrite each other's files. Wait until it ends, "
                      "stop it (kill -INT " +
                      std::to_string(holder.pid()) + "), or choose another /tracker/data_path."));
  holder.end();
  CHECK_NOTHROW(RunLock("data"));
  CHECK(place.log.lines().empty());
}

TEST_CASE("the lock of a process that was killed is taken over at once, waited for or not") {
  Place place;
  Holder holder;
  holder.kill();
  CHECK_NOTHROW(RunLock("data"));
  holder.wait();
  CHECK(place.log.count("data/run.lock is taken over: process " + std::to_string(holder.pid())) ==
        1);

  Holder other;
  other.kill();
  other.wait();
  CHECK_NOTHROW(RunLock("data"));
  CHECK(place.log.count("is dead") == 2);
}

TEST_CASE("a pid that another process has by now does not hold a lock") {
  Place place;
  put_lock([](LockOwner& owner) { owner.start_time -= 1; });
  CHECK_NOTHROW(RunLock("data"));
  CHECK(place.log.count("is taken over") == 1);
}

TEST_CASE("the lock of an earlier boot of this machine is dead, fresh as it may be") {
  Place place;
  put_lock([](LockOwner& owner) { owner.boot_id = "another boot"; });
  CHECK_NOTHROW(RunLock("data"));
  CHECK(place.log.count("is taken over") == 1);
}

TEST_CASE("the lock of another machine or container holds until it was not touched for long") {
  const std::vector<std::function<void(LockOwner&)>> strangers = {[](LockOwner& owner) {
                                                                    owner.host = "elsewhere";
                                                                    owner.boot_id = "another boot";
                                                                  },
                                                                  [](LockOwner& owner) {
                                                                    owner.pid_namespace = "pid:[1]";
                                                                    owner.pid = 1 << 28;
                                                                  }};
  for (const auto& stranger : strangers) {
    Place place;
    put_lock(stranger);
    make_older(kLock, 290);
    CHECK_THROWS_WITH(
        RunLock("data"),
        Contains("is in use by process") &&
            Contains(
                "Wait until it ends, stop it, or choose another /tracker/data_path.\n  If you are "
                "sure that no such process runs, delete data/run.lock: it is taken over "
                "automatically 300 seconds after its last sign of life, which was 290 seconds "
                "ago."));
    make_older(kLock, 20);
    CHECK_NOTHROW(RunLock("data"));
    CHECK(place.log.count("is taken over") == 1);
  }
}

TEST_CASE("the lock of another machine is waited for where a start asks for that, a live one not") {
  Place place;
  put_lock([](LockOwner& owner) {
    owner.host = "elsewhere";
    owner.boot_id = "another";
  });
  int waits = 0;
  const LockTimes times{.stale = std::chrono::milliseconds(1500),
                        .while_waiting = [&] { ++waits; }};
  {
    const RunLock lock("data", times);
    CHECK(place.log.count("on host elsewhere, which may be lost: waiting until it has not been "
                          "touched for 1 s") == 1);
    CHECK(place.log.count("is taken over") == 1);
  }
  CHECK(waits >= 5);
  const Holder holder;
  CHECK_THROWS_WITH(RunLock("data", times), Contains("is in use by process"));
}

TEST_CASE("whoever touches a lock that is waited for is alive, and a signal ends the wait") {
  const Place place;
  put_lock([](LockOwner& owner) {
    owner.host = "elsewhere";
    owner.boot_id = "another";
  });
  int waits = 0;
  const auto touch = [&] {
    if (++waits == 2) make_older(kLock, -1);
  };
  CHECK_THROWS_WITH(
      RunLock("data", {.stale = std::chrono::milliseconds(2000), .while_waiting = touch}),
      Contains("is in use by process") && Contains("on host elsewhere"));
  CHECK(waits == 2);
  CHECK_THROWS_AS(RunLock("data", {.while_waiting = [] { throw StoppedError("signal 15"); }}),
                  StoppedError);
}

TEST_CASE("a broken lock holds until it is old") {
  for (const char* content : {"", "{", "[]", "{\"host\": \"x\"}", "\xff\x00junk"}) {
    CAPTURE(content);
    Place place;
    write_file_atomically(kLock, content);
    CHECK_THROWS_WITH(RunLock("data"),
                      Catch::StartsWith("/tracker/data_path: 'data' may be in use: its lock says "
                                        "nothing of the process that holds it\n  Wait, or choose"));
    CHECK_THROWS_AS(RunLock("data"), ConfigError);
    make_older(kLock, 310);
    CHECK_NOTHROW(RunLock("data"));
    CHECK(place.log.count("data/run.lock is taken over: it is broken and old") == 1);
  }
}

TEST_CASE("of starters at the same time one gets the lock, of a dead process too") {
  Place place;
  set_log_sink([](LogLevel, const std::string&, const std::string&) {});  // from many threads
  for (int round = 0; round < 60; ++round) {
    if (round % 2 == 1) put_lock([](LockOwner& owner) { owner.start_time -= 1; });
    constexpr int kStarters = 4;
    std::atomic<int> waiting{kStarters}, tried{0}, got{0}, refused{0};
    std::vector<std::thread> starters;
    for (int i = 0; i < kStarters; ++i) {
      starters.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();
        std::optional<RunLock> lock;
        try {
          lock.emplace("data");
          ++got;
        } catch (const ConfigError&) {
          ++refused;
        }
        ++tried;
        while (tried < kStarters) std::this_thread::yield();
      });
    }
    for (std::thread& starter : starters) starter.join();
    CAPTURE(round);
    REQUIRE(got == 1);
    REQUIRE(refused == kStarters - 1);
    REQUIRE(fs::is_empty("data"));
  }
}

TEST_CASE("the owner touches its lock, makes a removed one again, and tells of a lost one") {
  using std::chrono::milliseconds;
  Place place;
  const auto wait_for = [](const std::function<bool()>& done) {
    for (int i = 0; i < 1000 && !done(); ++i) std::this_thread::sleep_for(milliseconds(10));
    return done();
  };
  {
    RunLock lock("data", {.refresh = milliseconds(5), .stale = milliseconds(300'000)});
    const std::string own = read_file(kLock);
    make_older(kLock, 1000);
    const auto old = fs::last_write_time(kLock);
    CHECK(wait_for([&] { return fs::last_write_time(kLock) > old + std::chrono::seconds(900); }));
    fs::remove(kLock);
    CHECK(wait_for([&] { return fs::exists(kLock) && read_file(kLock) == own; }));
    write_file_atomically(kLock, "another's");
    CHECK(wait_for([&] { return place.log.count("is not this run's any more") == 1; }));
    std::this_thread::sleep_for(milliseconds(30));
    CHECK_THROWS_WITH(
        lock.look(),
        Catch::StartsWith("/tracker/data_path: another process has taken 'data' over"));
  }
  CHECK(place.log.count("is not this run's any more") == 1);  // told once
  CHECK(read_file(kLock) == "another's");                     // and left alone
}

TEST_CASE("whoever slept while others held its lock and ended does not take it for removed") {
  using std::chrono::milliseconds;
  Place place;
  RunLock sleeper("data", {.refresh = std::chrono::hours(1), .stale = milliseconds(300'000)});
  const std::string own = read_file(kLock);
  write_file_atomically(kLock, [] {  // as a run in another container sees it
    LockOwner owner = this_process();
    owner.pid_namespace = "pid:[1]";
    return lock_text(owner);
  }());
  for (int others = 0; others < 2; ++others) {
    make_older(kLock, 310);
    { const RunLock other("data"); }
    CHECK_THAT(read_file(kLock), Contains("free_since"));
  }
  CHECK(place.log.count("is taken over") == 1);  // a free one is no news
  CHECK_THROWS_AS(sleeper.look(), ConfigError);
  CHECK_THAT(read_file(kLock), Contains("free_since"));
}

TEST_CASE("a folder that cannot hold a lock is told with what to do") {
  CHECK_THROWS_WITH(RunLock("/proc"),
                    Catch::StartsWith("/tracker/data_path: '/proc/run.lock") &&
                        Contains("cannot be made") &&
                        Contains("choose another /tracker/data_path"));
}

TEST_CASE("a disk that is full or fails while a lock is made is a lack of resources") {
  Place place;
  const auto fault = [](const char* fail_at) {
    setenv("DALLE2_FAIL_AT", fail_at, 1);
    std::string text;
    try {
      const RunLock lock("data");
    } catch (const ResourceError& error) {
      text = error.what();
    }
    unsetenv("DALLE2_FAIL_AT");
    return text;
  };
  CHECK_THAT(fault("lock:1:enospc"),
             Catch::StartsWith("/tracker/data_path: 'data/run.lock.") &&
                 Contains("cannot be made: No space left on device\n  Free some space"));
  CHECK_THAT(fault("lock:1:eio"), Contains("Input/output error\n  The disk or the network"));
  CHECK(fs::is_empty("data"));
}

TEST_CASE("what killed starts left beside a lock is removed, and nothing else") {
  Place place;
  const std::vector<std::string> others = {"data/shards.lock.host.1.2.part",
                                           "data/run.lock.old.part",
                                           "data/run.lock.host.1.x.part",
                                           "data/prerun.lock.host.1.2.part"};
  for (const std::string& path : others) write_file_atomically(path, "not ours");
  for (const char* path :
       {"data/run.lock.host.1.2.part", "data/run.lock.a-host.example.123.4.part"})
    write_file_atomically(path, "half");
  { const RunLock lock("data"); }
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator("data")) left.push_back(entry.path().string());
  CHECK_THAT(left, Catch::Matchers::UnorderedEquals(others));
}

TEST_CASE("a folder that a lock made is removed with it, unless something is in it") {
  Place place;
  { const RunLock lock("new/deep"); }
  CHECK(!fs::exists("new/deep"));
  {
    const RunLock lock("new/deep");
    write_file_atomically("new/deep/file", "mine");
  }
  CHECK(fs::exists("new/deep/file"));
  { const RunLock lock("data"); }
  CHECK(fs::exists("data"));
}

TEST_CASE("the lock of another folder has its own name and its own words") {
  Place place;
  const LockPlace shards{.folder = "data",
                         .file = "shards.lock",
                         .key = "--out",
                         .clash = "Two commands would mix their shards."};
  const RunLock of_run("data");
  const RunLock first(shards);  // beside the run's
  CHECK(fs::exists("data/shards.lock"));
  CHECK_THROWS_WITH(
      RunLock(shards),
      Catch::StartsWith(
          fmt::format("--out: 'data' is in use by process {} on host ", ::getpid())) &&
          Contains(
              "\n  Two commands would mix their shards. Wait until it ends, stop it (kill -INT ") &&
          Contains("or choose another --out."));
}

}  // namespace
}  // namespace dalle2
