// SPDX-License-Identifier: MIT
#include "io/url_source.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/error.h"
#include "net/s3.h"

namespace dalle2 {
namespace {

/// What a shell reports for a command that wrote to a closed pipe.
constexpr int kClosedPipe = 128 + 13;

/// The output of a shell command.
class Pipe {
 public:
  Pipe(const std::string& command, uint64_t offset)
      : command_(command), to_skip_(offset), stream_(popen(command.c_str(), "re")) {
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
    while (to_skip_ > 0) {
      const size_t got = read_some(buffer, std::min<uint64_t>(capacity, to_skip_));
      if (got == 0) {
        throw DataError("pipe:{}: the output ends {} bytes before the offset", command_, to_skip_);
      }
      to_skip_ -= got;
    }
    return read_some(buffer, capacity);
  }

 private:
  size_t read_some(char* buffer, size_t capacity) {
    if (stream_ == nullptr) return 0;
    ssize_t got = -1;
    do {
      got = ::read(fileno(stream_), buffer, capacity);
    } while (got < 0 && errno == EINTR);
    if (got < 0) throw DataError("pipe:{}: cannot be read: {}", command_, errno_text(errno));
    if (got == 0) close();
    return static_cast<size_t>(got);
  }

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
  uint64_t to_skip_;
  FILE* stream_;
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

ByteSource open_source(const std::string& url, const SourceOptions& options) {
  if (url.starts_with("pipe:")) {
    auto pipe = std::make_shared<Pipe>(url.substr(5), options.offset);
    return [pipe](char* buffer, size_t capacity) { return pipe->read(buffer, capacity); };
  }
  const bool s3 = url.starts_with("s3://");
  if (s3 || url.starts_with("http://") || url.starts_with("https://")) {
    HttpOptions http = options.http;
    http.offset = static_cast<int64_t>(options.offset);
    auto stream =
        std::make_shared<HttpStream>(s3 ? s3_request(url) : HttpGet{url}, std::move(http));
    return [stream](char* buffer, size_t capacity) { return stream->read(buffer, capacity); };
  }
  if (!is_local_url(url)) {
    throw ConfigError(
        "{}: only files, http://, https://, s3:// and pipe:COMMAND can be read.\n"
        "  Use a command that writes the file, for example \"pipe:gsutil cat "
        "gs://BUCKET/{{}}.tar\".",
        public_url(url));
  }
  return file_source(local_path(url), options.offset);
}

}  // namespace dalle2
