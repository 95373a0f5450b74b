// SPDX-License-Identifier: MIT
// libcurl's handles, kept with their open connections from one transfer to the next.
#pragma once

#include <curl/curl.h>

#include <memory>

namespace dalle2 {

/// One transfer at a time; its connections stay open for the next.
class HttpSession {
 public:
  /// @throws ResourceError
  HttpSession();
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  CURLM* multi() const { return multi_; }
  CURL* easy() const { return easy_; }
  /// Begins the transfer that easy() is set up for.
  void begin();
  /// Ends it, finished or not, and forgets its options.
  void end();

 private:
  CURLM* multi_;
  CURL* easy_;
  bool running_ = false;
};

/// An idle session of this process or a new one; goes back to the idle ones with the pointer.
std::shared_ptr<HttpSession> borrow_http_session();

}  // namespace dalle2
