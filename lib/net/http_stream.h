// SPDX-License-Identifier: MIT
// A file behind http:// or https://, as a stream of bytes that survives a bad network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/http_transfer.h"

namespace dalle2 {

struct HttpOptions {
  double stall_seconds = net_timeout_seconds();
  int attempts = net_attempts();    ///< in a row without progress
  int64_t offset = 0;               ///< byte of the file to begin at
  std::function<bool()> cancelled;  ///< asked while waiting; true ends the stream by an error
};

/// What is asked for.
struct HttpGet {
  std::string url;
  std::string shown = {};  ///< the url in messages; empty: public_url(url)
  bool follow_redirects = true;
  bool netrc = false;  ///< a login for the host in ~/.netrc (NETRC) is used
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
