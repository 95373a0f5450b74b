// SPDX-License-Identifier: MIT
#include "io/streams/command_source.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "base/stop_signal.h"

extern char** environ;

namespace dalle2 {
namespace {

/// What a shell reports for a command that wrote to a closed pipe.
constexpr int kClosedPipe = 128 + 13;
constexpr int kPollMilliseconds = 100;
constexpr int kGracePolls = 20;  ///< between SIGTERM and SIGKILL

class Command {
 public:
  Command(const std::string& command, uint64_t offset, std::function<bool()> cancelled)
      : command_(command),
        shown_(public_url("pipe:" + command)),
        to_skip_(offset),
        cancelled_(std::move(cancelled)) {
    start();
  }
  ~Command() {
    if (output_ >= 0) close(output_);
    if (process_ > 0) end();
  }
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  size_t read(char* buffer, size_t capacity) {
    while (to_skip_ > 0) {
      const size_t got = read_some(buffer, std::min<uint64_t>(capacity, to_skip_));
      if (got == 0) {
        throw DataError("{}: the output ends {} bytes before the offset", shown_, to_skip_);
      }
      to_skip_ -= got;
    }
    return read_some(buffer, capacity);
  }

 private:
  void start() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("started", errno);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    // A process group of its own can be ended as a whole. These two are ignored here, not there.
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGXFSZ);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
    std::string shell = "sh", flag = "-c", text = command_;
    char* const words[] = {shell.data(), flag.data(), text.data(), nullptr};
    const int error = posix_spawn(&process_, "/bin/sh", &actions, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    output_ = ends[0];
    if (error != 0) {
      process_ = 0;
      close(std::exchange(output_, -1));
      fail("started", error);
    }
  }

  [[noreturn]] void fail(const char* what, int error) const {
    throw DataError("{}: the command cannot be {}: {}", shown_, what, errno_text(error));
  }

  size_t read_some(char* buffer, size_t capacity) {
    if (output_ < 0) return 0;
    wait_for_bytes();
    ssize_t got = -1;
    do {
      got = ::read(output_, buffer, capacity);
    } while (got < 0 && errno == EINTR);
    if (got < 0) fail("read", errno);
    if (got == 0) finish();
    return static_cast<size_t>(got);
  }

  void wait_for_bytes() const {
    pollfd descriptor = {output_, POLLIN, 0};
    while (poll(&descriptor, 1, kPollMilliseconds) <= 0) check_cancelled();
  }

  void check_cancelled() const {
    if (stop_requested() != 0) throw StoppedError("{}: stopped by a signal", shown_);
    if (cancelled_ && cancelled_()) throw NetworkError("{}: cancelled", shown_);
  }

  /// The end of the output: how did the command end?
  void finish() {
    close(std::exchange(output_, -1));
    int status = 0;
    // It may continue after it has closed its output.
    for (pid_t ended = 0; ended != process_;) {
      ended = waitpid(process_, &status, WNOHANG);
      if (ended < 0 && errno != EINTR) fail("waited for", errno);
      if (ended == 0) {
        nap(1);
        check_cancelled();
      }
    }
    process_ = 0;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code != 0 && code != kClosedPipe) {
      throw DataError(
          "{}: the command failed with status {}.\n  Run it by hand to see why.", shown_, code);
    }
  }

  static void nap(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }

  /// Before its end.
  void end() {
    kill(-process_, SIGTERM);
    for (int i = 0; i < kGracePolls; ++i) {
      if (waitpid(process_, nullptr, WNOHANG) != 0) return;
      nap(kPollMilliseconds / 10);
    }
    kill(-process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  std::string command_;
  std::string shown_;  // in messages: a command may hold secrets
  uint64_t to_skip_;
  std::function<bool()> cancelled_;
  pid_t process_ = 0;
  int output_ = -1;
};

}  // namespace

ByteSource command_source(const std::string& command,
                          uint64_t offset,
                          std::function<bool()> cancelled) {
  auto running = std::make_shared<Command>(command, offset, std::move(cancelled));
  return [running](char* buffer, size_t capacity) { return running->read(buffer, capacity); };
}

}  // namespace dalle2
