// SPDX-License-Identifier: MIT
#include "data/shard_reader.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "base/error.h"
#include "data/shards.h"

namespace dalle2 {
namespace {

/// What a shell reports for a command that wrote to a closed pipe.
constexpr int kClosedPipe = 128 + 13;

/// The output of a shell command.
class Pipe {
 public:
  explicit Pipe(const std::string& command)
      : command_(command), stream_(popen(command.c_str(), "re")) {
    if (stream_ == nullptr) {
      throw DataError("pipe:{}: the command cannot be started: {}", command, errno_text(errno));
    }
  }
  ~Pipe() {
    if (stream_ != nullptr) pclose(stream_);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  size_t read(char* buffer, size_t capacity) {
    if (stream_ == nullptr) return 0;
    ssize_t got = -1;
    do {
      got = ::read(fileno(stream_), buffer, capacity);
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw DataError("pipe:{}: cannot be read: {}", command_, errno_text(errno));
    if (got == 0) close();
    return static_cast<size_t>(got);
  }

 private:
  void close() {
    const int status = pclose(std::exchange(stream_, nullptr));
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (code != 0 && code != kClosedPipe) {
      throw DataError("pipe:{}: the command failed with status {}.\n  Run it by hand to see why.",
                      command_,
                      code);
    }
  }

  std::string command_;
  FILE* stream_;
};

}  // namespace

std::unique_ptr<SampleReader> open_shard(const std::string& url, MemberWarning warn) {
  if (url.starts_with("pipe:")) {
    auto pipe = std::make_shared<Pipe>(url.substr(5));
    ByteSource source = [pipe](char* buffer, size_t capacity) {
      return pipe->read(buffer, capacity);
    };
    return std::make_unique<SampleReader>(std::move(source), url, std::move(warn));
  }
  if (!is_local_url(url)) {
    throw ConfigError(
        "/data/webdataset_base_url: shards at {} are not available yet: only files and pipe: are.\n"
        "  Use a command that writes the tar, for example \"pipe:curl -sf {}\" or "
        "\"pipe:s3cmd get s3://BUCKET/{{}}.tar -\".",
        url,
        url);
  }
  return std::make_unique<SampleReader>(local_path(url), std::move(warn));
}

}  // namespace dalle2
