// SPDX-License-Identifier: MIT
// A file behind http:// or https://, as a stream of bytes that survives a bad network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace dalle2 {

/// Seconds without a byte after which a transfer counts as stalled: DALLE2_NET_TIMEOUT, else 60.
/// @throws ConfigError if the variable is no positive number
double net_timeout_seconds();

/// The server's answer was a refusal that no retry changes, or retries did not change it.
class HttpStatusError : public NetworkError {
 public:
  template <class... Args>
  HttpStatusError(long status, fmt::format_string<Args...> text, Args&&... args)
      : NetworkError(text, std::forward<Args>(args)...), status_(status) {}
  long status() const { return status_; }

 private:
  long status_;
};

struct HttpOptions {
  double stall_seconds = net_timeout_seconds();
  int attempts = 8;                 ///< in a row without progress
  int64_t offset = 0;               ///< byte of the file to begin at
  std::function<bool()> cancelled;  ///< asked while waiting; true ends the stream by an error
};

/// The body of a GET, pulled. A cut, a stall, a refused connection, 408, 425, 429 and 5xx are tried
/// again after a growing pause (or the server's Retry-After), from the byte reached: by Range if
/// the server knows it, else from the start, passing over what was delivered. Attempts and pauses
/// without progress together last at most about four stall times. A file that changes between two
/// attempts (ETag, size) is an error, and so is one that ends before the offset. Redirects are
/// followed, certificates checked.
class HttpStream {
 public:
  /// Connects at the first read.
  explicit HttpStream(const std::string& url, HttpOptions options = {});
  ~HttpStream();
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  /// Up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws NetworkError naming the
  /// url (public_url), what happened and what to do; HttpStatusError for a status
  size_t read(char* buffer, size_t capacity);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dalle2
