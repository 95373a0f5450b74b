// SPDX-License-Identifier: MIT
// A file behind http:// or https://, as a stream of bytes that survives a bad network.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "net/http_transfer.h"

namespace dalle2 {

/// The request of a stream: a GET without a range of its own. Its `accepted` does not count, plain http is allowed.
using HttpGet = HttpCall;

/// The body of a GET, pulled. A cut, a stall, a refused connection, 408, 425, 429 and 5xx are tried
/// again (HttpOptions), from the byte reached: by Range if the server knows it, else from the start,
/// passing over what was delivered. A file that changes between two attempts (ETag, size) is an error,
/// and so is one that ends before the offset.
class HttpStream {
 public:
  /// Connects at the first read. @param offset byte of the file to begin at
  explicit HttpStream(HttpGet request, HttpOptions options = {}, int64_t offset = 0);
  explicit HttpStream(const std::string& url, HttpOptions options = {})
      : HttpStream(HttpGet{.url = url}, std::move(options)) {}
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  /// Up to `capacity` (> 0) bytes. @return how many, 0 at the end. @throws NetworkError naming the
  /// url (public_url), what happened and what to do; HttpStatusError for a status; StoppedError
  size_t read(char* buffer, size_t capacity);

 private:
  void advance();
  std::string judge(const HttpResponse& head);
  std::string take(const HttpResponse& head, std::string_view bytes);
  std::optional<HttpFailure> fault_of_end(const HttpResponse& head);

  HttpGet request_;
  const HttpOptions options_;
  const int64_t begin_;
  HttpAttempts attempts_;
  std::string body_;             // received, not handed out yet
  size_t handed_out_ = 0;        // of body_
  int64_t received_;             // position in the file after what came
  int64_t received_at_failure_;  // when the attempts without progress began
  bool has_ended_ = false;
  std::optional<std::string> etag_;         // as the first response says, and the next
  std::optional<int64_t> total_;            // bytes of the file
  bool is_judged_ = false;                  // the headers of this attempt
  int64_t to_skip_ = 0;                     // bytes known already, of a server without ranges
  std::unique_ptr<HttpTransfer> transfer_;  // during an attempt
};

}  // namespace dalle2
