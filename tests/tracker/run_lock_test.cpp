// SPDX-License-Identifier: MIT
#include "tracker/run_folder/run_record.h"

#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/this_process.h"
#include "io/files/atomic_file.h"
#include "support/captured_log.h"
#include "support/temp_dir.h"

namespace dalle2 {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using std::chrono::milliseconds;

/// A process that holds the lock of a folder until it is told to end.
class Holder {
 public:
  explicit Holder(const std::string& folder) {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const RunLock lock(folder);
      char byte = 1;
      if (::write(ready[1], &byte, 1) == 1) ::pause();
      ::_exit(1);
    }
    char byte = 0;
    REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  ~Holder() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

LockTimes short_times() {
  return {.here = milliseconds(30), .elsewhere = milliseconds(60)};
}

TEST_CASE("a lock held on this machine ends the start with exit 2, and names the holder") {
  const test::TempDir dir;
  test::CapturedLog log;
  Holder holder(dir / "run");
  CHECK_THROWS_WITH(RunLock(dir / "run", short_times()),
                    Contains("a run works in " + (dir / "run")) &&
                        Contains(fmt::format("process {} on {}", holder.pid(), host_name())) &&
                        Contains("choose another data_path"));
  CHECK_THROWS_AS(RunLock(dir / "run", short_times()), ConfigError);
  CHECK(log.count("is in use by process") == 2);  // said once a start
  // It ends with its process, however that ends; the file stays.
  holder.kill();
  CHECK_NOTHROW(RunLock(dir / "run", short_times()));
  CHECK(fs::exists(dir / "run/run.lock"));
}

TEST_CASE("a lock held elsewhere is waited for longer, and ends the start with exit 6") {
  const test::TempDir dir;
  test::CapturedLog log;
  const Holder holder(dir / "run");
  test::put_file(dir / "run/run.lock", R"({"host": "other", "pid": 7, "start": "long ago"})");
  const auto began = std::chrono::steady_clock::now();
  CHECK_THROWS_AS(RunLock(dir / "run", short_times()), NetworkError);
  CHECK(std::chrono::steady_clock::now() - began >= milliseconds(60));
  CHECK(log.count("process 7 on other, since long ago") == 1);
}

TEST_CASE("a signal ends the wait") {
  const test::TempDir dir;
  test::CapturedLog log;
  const Holder holder(dir / "run");
  LockTimes times;  // the real ones
  times.while_waiting = [] { throw StoppedError("stopped"); };
  CHECK_THROWS_AS(RunLock(dir / "run", times), StoppedError);
}

TEST_CASE("a lock that is released while it is waited for is taken") {
  const test::TempDir dir;
  test::CapturedLog log;
  Holder holder(dir / "run");
  int looks = 0;
  LockTimes times;
  times.while_waiting = [&] {
    if (++looks == 2) holder.kill();
  };
  CHECK_NOTHROW(RunLock(dir / "run", times));
  CHECK(looks == 2);
}

TEST_CASE("a file system without locks gives one warning, and the start goes on") {
  const test::TempDir dir;
  test::CapturedLog log;
  ::setenv("DALLE2_FAIL_AT", "flock:1:eio", 1);
  CHECK_NOTHROW(RunLock(dir / "run", short_times()));
  ::unsetenv("DALLE2_FAIL_AT");
  CHECK(log.count("cannot be locked here") == 1);
}

TEST_CASE("a folder or a file that cannot be made is refused with the reason") {
  const test::TempDir dir;
  test::put_file(dir / "file", "");
  CHECK_THROWS_WITH(RunLock(dir / "file/run", short_times()), Contains("Not a directory"));
  fs::create_directories(dir / "run/run.lock");
  CHECK_THROWS_WITH(RunLock(dir / "run", short_times()), Contains("Is a directory"));
}

}  // namespace
}  // namespace dalle2
