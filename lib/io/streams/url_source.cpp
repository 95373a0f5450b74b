// SPDX-License-Identifier: MIT
#include "io/streams/url_source.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "net/http_call.h"
#include "net/hub/hub_api.h"
#include "net/s3/s3.h"

extern char** environ;

namespace dalle2 {
namespace {

/// What a shell reports for a command that wrote to a closed pipe.
constexpr int kClosedPipe = 128 + 13;
constexpr int kPollMilliseconds = 100;
constexpr int kGracePolls = 20;  ///< between SIGTERM and SIGKILL

/// The output of a shell command from a byte on. What is not read to the end is ended, with all that it has
/// started.
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

bool is_local_url(const std::string& url) {
  if (url.starts_with("file:")) return true;
  if (url.starts_with("pipe:")) return false;
  return url.find("://") == std::string::npos;
}

std::string local_path(const std::string& url) {
  if (url.starts_with("file://")) return url.substr(7);
  if (url.starts_with("file:")) return url.substr(5);
  return url;
}

std::string url_file_name(const std::string& url) {
  const bool is_path = url.find("://") == std::string::npos;
  const std::string path = is_path ? url : url.substr(0, url.find_first_of("?#"));
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

std::optional<HttpGet> remote_request(const std::string& url) {
  if (url.starts_with("s3://")) return s3_request(url);
  if (is_hub_url(url)) return hub_request(url);
  if (url.starts_with("http://") || url.starts_with("https://")) return HttpGet{.url = url};
  return std::nullopt;
}

ByteSource open_source(const std::string& url, const SourceOptions& options) {
  if (url.starts_with("pipe:")) {
    if (!options.allow_pipe) {
      throw ConfigError(
          "{}: this is a command, which would run on this machine with your rights.\n"
          "  If you trust it: write \"allow_pipe\": true into the \"data\" of the config file, or "
          "give --allow-pipe where the url is an argument.",
          public_url(url));
    }
    const auto command =
        std::make_shared<Command>(url.substr(5), options.offset, options.http.cancelled);
    return std::bind_front(&Command::read, command);
  }
  if (std::optional<HttpGet> request = remote_request(url)) {
    auto stream = std::make_shared<HttpStream>(
        *std::move(request), options.http, static_cast<int64_t>(options.offset));
    return std::bind_front(&HttpStream::read, stream);
  }
  if (!is_local_url(url)) {
    throw ConfigError(
        "{}: only files, http://, https://, s3://, hf:// and pipe:COMMAND can be read.\n"
        "  Use a command that writes the file, for example \"pipe:gsutil cat "
        "gs://BUCKET/{{}}.tar\".",
        public_url(url));
  }
  return file_source(local_path(url), options.offset);
}

RemotePart fetch_part(const std::string& url, uint64_t from, uint64_t size) {
  constexpr long kPart = 206, kBehindTheEnd = 416;
  HttpCall call = remote_request(url).value_or(HttpCall{.url = url});
  call.range = fmt::format("bytes={}-{}", from, from + size - 1);
  call.accepted = {kBehindTheEnd};
  call.plain_http = true;
  call.most_bytes = std::max(size, kMostWholeFile);
  HttpAnswer answer = http_call(call);
  std::string state = answer.header("etag");
  if (state.empty()) state = answer.header("last-modified");
  if (answer.status() == kBehindTheEnd) {
    return {"", static_cast<uint64_t>(answer.head.range_total.value_or(0)), std::move(state)};
  }
  if (answer.status() != kPart) {  // the whole file
    const uint64_t whole = answer.body.size();
    static std::atomic<bool> told = false;
    if (whole > size && !told.exchange(true)) {
      log_warning(
          "data",
          "{}: the server sends the whole file where a part is asked for: reading costs many "
          "times the transfer\n  Download the folder, or serve it with byte ranges.",
          public_url(url));
    }
    return {from < whole ? answer.body.substr(from, size) : "", whole, std::move(state)};
  }
  const auto start = answer.head.range_start;
  const auto total = answer.head.range_total;
  if (!start || static_cast<uint64_t>(*start) != from || !total || answer.body.size() > size) {
    throw NetworkError("{}: the server sent another part than bytes {} to {} of the file",
                       public_url(url),
                       from,
                       from + size - 1);
  }
  const auto whole = static_cast<uint64_t>(*total);
  if (answer.body.size() < std::min<uint64_t>(size, whole - std::min(from, whole))) {
    throw NetworkError("{}: the server sent {} of the {} bytes from byte {} on that were asked for",
                       public_url(url),
                       answer.body.size(),
                       size,
                       from);
  }
  return {std::move(answer.body), whole, std::move(state)};
}

}  // namespace dalle2
