// SPDX-License-Identifier: MIT
// A file behind http:// or https://, as a stream of bytes that survives a bad network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "net/http_response.h"

namespace dalle2 {

/// Seconds without a byte after which a transfer counts as stalled: DALLE2_NET_TIMEOUT, else 60.
/// @throws ConfigError if the variable is no positive number
double net_timeout_seconds();

/// The libraries that this layer runs with: "libcurl 7.88.1, OpenSSL 3.0.17".
std::string net_library_versions();

/// The server's answer was a refusal that no retry changes, or retries did not change it.
class HttpStatusError : public NetworkError {
 public:
  template <class... Args>
  HttpStatusError(long status, fmt::format_string<Args...> text, Args&&... args)
      : NetworkError(text, std::forward<Args>(args)...), status_(status) {}
  long status() const { return status_; }
  /// The server says that there is no such file.
  bool says_absent() const { return status_ == 404 || status_ == 410; }

 private:
  long status_;
};

/// Bytes a second; a transfer below is cut and begun again.
inline constexpr double kSlowestTransfer = 128;

struct HttpOptions {
  double stall_seconds = net_timeout_seconds();
  int attempts = 8;                 ///< in a row without progress
  int64_t offset = 0;               ///< byte of the file to begin at
  std::function<bool()> cancelled;  ///< asked while waiting; true ends the stream by an error
};

/// What is asked for.
struct HttpGet {
  std::string url;
  std::string shown = {};  ///< the url in messages; empty: public_url(url)
  bool follow_redirects = true;
  /// All headers of an attempt ("Name: value"), given its range ("bytes=7-"; empty for the whole).
  std::function<std::vector<std::string>(const std::string& range)> headers = {};
  /// What a refusal means and what to do, given the beginning of its body.
  std::function<std::string(const HttpResponse& response, const std::string& body)> explain = {};
};

/// The body of a GET, pulled. A cut, a stall, a refused connection, 408, 425, 429 and 5xx are tried
/// again after a growing pause (or the server's Retry-After), from the byte reached: by Range if
/// the server knows it, else from the start, passing over what was delivered. Attempts and pauses
/// without progress together last at most about four stall times. A file that changes between two
/// attempts (ETag, size) is an error, and so is one that ends before the offset. A transfer that
/// brings next to nothing (kSlowestTransfer) for a stall time counts as stalled. Redirects are
/// followed, certificates checked. A stop signal ends the wait.
class HttpStream {
 public:
  /// Connects at the first read.
  explicit HttpStream(const std::string& url, HttpOptions options = {});
  explicit HttpStream(HttpGet request, HttpOptions options = {});
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  /// Up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws NetworkError naming the
  /// url (public_url), what happened and what to do; HttpStatusError for a status; StoppedError
  size_t read(char* buffer, size_t capacity);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
