// SPDX-License-Identifier: MIT
// What transfers of every kind share: how long they wait, when they try again, how libcurl is set up.
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

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

/// What the headers of one response say.
struct HttpResponse {
  long status = 0;
  std::string etag, bucket_region;
  std::optional<int64_t> content_length, range_start, range_total;
  std::optional<double> retry_after;           ///< seconds
  std::map<std::string, std::string> headers;  ///< names in small letters

  std::optional<int64_t> total() const { return status == 206 ? range_total : content_length; }
  /// The header of that name (small letters); empty if there is none.
  std::string header(const std::string& name) const;
  /// A line as it came; a status line forgets the response before it (a redirect, a proxy).
  void take_header(std::string_view line);

 private:
  void take_retry_after(const std::string& value);
};

/// Seconds without a byte after which a transfer counts as stalled: DALLE2_NET_TIMEOUT, else 60.
/// @throws ConfigError if the variable is not a positive number
double net_timeout_seconds();

/// Attempts of a transfer, in a row without progress, where its options do not say another number: 8,
/// or 1 after try_hosts_once(), as nobody who looks at a config wants to wait for a host.
int net_attempts();
void try_hosts_once();

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

/// The server was not reached, or it failed, through all attempts: a later one may succeed.
class UnreachableError : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

/// Bytes a second; a transfer below is cut and begun again.
inline constexpr double kSlowestTransfer = 128;

/// Statuses that another attempt may change: 408, 425, 429 and 5xx.
bool is_worth_retrying(long status);
/// Results of libcurl that another attempt does not change: a wrong url, an untrusted certificate.
bool is_hopeless(CURLcode result);
/// Whether the same call may succeed later, without anything else changed: not after a refusal.
bool may_pass(const NetworkError& error);
/// What went wrong in a transfer, as it may be shown: a proxy that cannot be used is named with its login.
/// @param text of CURLOPT_ERRORBUFFER; empty: the result says it
std::string curl_reason(const char* text, CURLcode result);
/// What to do about a status, as a sentence without its full stop.
const char* status_advice(long status);

double seconds_since(std::chrono::steady_clock::time_point start);

/// An attempt that failed.
struct HttpFailure {
  std::string reason;
  double lost_seconds = 0;  ///< without progress
  std::optional<double> retry_after = {};
  long status = 0;
};

/// Tells when an attempt has been silent, or next to it (kSlowestTransfer), for a stall time.
class StallWatch {
 public:
  explicit StallWatch(double stall_seconds) : stall_seconds_(stall_seconds) {}

  void begin_attempt();
  /// The time until now was the caller's.
  void forget_silence() { last_byte_ = Clock::now(); }
  /// Bytes came or went; 0 for a sign of life.
  void moved(int64_t bytes);
  /// Waits for the network, a quarter of a second at most.
  void poll(const HttpSession& session);
  double silent_seconds() const { return seconds_since(last_byte_); }
  /// The failure of an attempt that has stalled. Says in the log what is slow.
  /// @param at the byte reached
  std::optional<HttpFailure> stalled(const std::string& shown, int64_t at);

 private:
  using Clock = std::chrono::steady_clock;
  double first_notice() const;

  double stall_seconds_;
  Clock::time_point last_byte_;
  double notice_at_ = 0;       // seconds without a byte
  double window_seconds_ = 0;  // waited since the rate was last looked at
  int64_t window_bytes_ = 0;   // that moved meanwhile
};

/// Counts attempts without progress. Together with their pauses they last at most about four stall
/// times.
class HttpRetries {
 public:
  HttpRetries(double stall_seconds, int attempts)
      : stall_seconds_(stall_seconds), attempts_(attempts) {}

  /// There was progress: the count starts over.
  void forget();
  int failures() const { return failures_; }
  /// Past this many seconds a server that asks for a pause is not waited for.
  void set_most_asked(double seconds) { most_asked_ = seconds; }
  /// Counts a failure. @return seconds to wait before the next attempt (growing, or as the server
  /// asks); none: it was the last one
  std::optional<double> pause_after(const HttpFailure& failure);

 private:
  double stall_seconds_;
  int attempts_;
  int failures_ = 0;
  double trouble_seconds_ = 0;
  double most_asked_ = std::numeric_limits<double>::infinity();
};

/// Sleeps, and calls `check`, which may throw, every 50 ms.
void wait_seconds(double seconds, const std::function<void()>& check);

/// Sets what every transfer needs: protocols, certificates (always checked), no signals, timeouts.
void set_up_transfer(CURL* easy, const std::string& url, double stall_seconds);

/// Sets the login that ~/.netrc (NETRC) has for the host of `url`, unless the url has a password or a
/// signature (presigned addresses of stores, which refuse a second login).
/// libcurl sends it to this scheme, host and port alone, wherever redirects lead.
void set_netrc_login(CURL* easy, const std::string& url);

}  // namespace dalle2
