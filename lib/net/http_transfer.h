// SPDX-License-Identifier: MIT
// A file behind http:// or https:// as a stream of bytes that survives a bad network (HttpStream), and the
// engine of all transfers: one attempt (HttpTransfer), and what is done when it fails (HttpAttempts).
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "net/url.h"

namespace dalle2 {

/// What the headers of one response say.
struct HttpResponse {
  long status = 0;
  std::optional<int64_t> content_length, range_start, range_total;
  std::optional<double> retry_after;           ///< seconds, of Retry-After or RateLimit
  std::map<std::string, std::string> headers;  ///< names in small letters
  std::optional<int64_t> total() const { return status == 206 ? range_total : content_length; }
  /// The header of that name (small letters); empty if there is none.
  std::string header(const std::string& name) const;
};

struct HttpAnswer {
  HttpResponse head;
  std::string body;   ///< of a refusal only the beginning
  std::string shown;  ///< the address in messages

  long status() const { return head.status; }
  std::string header(const std::string& name) const { return head.header(name); }
};

/// Bytes of a file, sent as a body.
struct HttpFilePart {
  std::string path;
  int64_t offset = 0;
  std::optional<int64_t> size = {};  ///< none: to the end of the file
};

struct HttpCall {
  std::string method = "GET";
  std::string url = {};
  std::string shown = {};                 ///< the url in messages; empty: public_url(url)
  std::vector<std::string> headers = {};  ///< "Name: value"; secrets among them stay on this host
  std::string range = {};                 ///< "bytes=7-"; empty: the whole
  /// More headers, made for each attempt: those of S3. No redirect is followed, and AWS_CA_BUNDLE counts.
  std::function<std::vector<std::string>()> sign = nullptr;
  std::string body = {};
  std::optional<HttpFilePart> file = {};  ///< sent instead of `body`
  std::vector<long> accepted = {};        ///< statuses beside 2xx that are answers, not errors
  bool netrc = false;                     ///< a login for the host in ~/.netrc (NETRC) is used
  bool plain_http = false;                ///< http:// to another host than the loopback is allowed
  bool slow_answer = false;               ///< any byte of the answer is progress, at any rate
  size_t most_bytes = size_t{64} << 20;   ///< of an answer in memory
  /// What a refusal means and what to do, a sentence without its full stop. Null: by the status.
  std::function<std::string(const HttpAnswer& answer)> explain = nullptr;
};

/// Seconds without a byte after which a transfer counts as stalled: DALLE2_NET_TIMEOUT, else 60.
/// @throws ConfigError if the variable is not a positive number
double net_timeout_seconds();

/// Attempts of a transfer, in a row without progress: 8, or 1 after try_hosts_once(), as nobody who looks
/// at a config wants to wait for a host.
int net_attempts();
void try_hosts_once();

/// How long a transfer is tried. It fails after `attempts` failures in a row: with 8 that answer at once
/// about 45 s pass, in pauses of 0.5 s to 15 s or as the server asks (Retry-After). It fails earlier if
/// failures and pauses cost four stall times, or if the next pause would end after the deadline.
struct HttpOptions {
  double stall_seconds = net_timeout_seconds();
  int attempts = net_attempts();  ///< 1 for a call that must not reach the server twice
  bool ends_at_stop = true;       ///< a stop signal ends it with StoppedError
  /// Ends everything, a transfer under way too, as if the server were not reached.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  std::function<bool()> cancelled = nullptr;  ///< asked while waiting; true ends it by an error
  bool says_retries = true;                   ///< a warning in the log for each failed attempt
  std::function<void()> on_fault = nullptr;   ///< an attempt failed, not by a cut amid the body
};

/// Since bytes last came or left the machine in any transfer of the process, or something else was noted.
double seconds_without_progress();
void note_progress();

/// The libraries that this layer runs with: "libcurl 7.88.1, OpenSSL 3.0.17".
std::string net_library_versions();

/// The server's answer was a refusal that no retry changes, or retries did not change it.
class HttpStatusError : public NetworkError {
 public:
  HttpStatusError(long status, const std::string& text, std::optional<double> retry_after = {})
      : NetworkError("{}", text), status_(status), retry_after_(retry_after) {}
  long status() const { return status_; }
  /// The server says that there is no such file.
  bool says_absent() const { return status_ == 404 || status_ == 410; }
  /// Seconds that the server asks to be left alone (Retry-After).
  std::optional<double> retry_after() const { return retry_after_; }

 private:
  long status_;
  std::optional<double> retry_after_;
};

/// The server was not reached, or it failed, through all attempts: a later one may succeed.
class UnreachableError : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

/// Statuses that another attempt may change: 408, 425, 429 and 5xx.
bool is_worth_retrying(long status);
/// Whether the same call may succeed later, without anything else changed. Not after a refusal.
bool may_pass(const NetworkError& error);
/// What to do about a status, as a sentence without its full stop.
const char* status_advice(long status);
/// HttpCall::explain by the status: these texts, and status_advice() for others.
std::function<std::string(const HttpAnswer&)> advice_for(std::map<long, std::string> texts);

struct HttpFailure {
  std::string reason;
  std::string advice = {};  ///< a sentence without its full stop; empty: that of an absent answer
  bool is_final = false;    ///< no later attempt mends it
  double lost_seconds = 0;  ///< without progress
  std::optional<double> retry_after = {};
  long status = 0;
  bool is_cut = false;  ///< without an answer, amid the body of the request
};

class HttpAttempts {
 public:
  HttpAttempts(const HttpCall& call, const HttpOptions& options);

  const std::string& shown() const { return shown_; }
  /// @throws StoppedError, NetworkError it is cancelled, UnreachableError the deadline has passed
  void check() const;
  /// There was progress: the count starts over.
  void forget() { trouble_seconds_ = failures_ = 0; }
  /// Waits until the next attempt may begin. @throws HttpStatusError, UnreachableError, NetworkError: the
  /// failure, if it was the last one
  /// @param where in the transfer: " at byte 7"
  void after(const HttpFailure& failure, const std::string& where = "");

 private:
  [[noreturn]] void give_up(const HttpFailure& failure, const std::string& where) const;

  std::string shown_;
  HttpOptions options_;
  int failures_ = 0;
  double trouble_seconds_ = 0;
};

/// One attempt: a request, the redirects that it meets (10 at most), and the body of the answer.
/// Another scheme, host or port gets no login: of the headers only those that describe the content.
class HttpTransfer {
 public:
  /// Takes a piece of the answer's body. @return what no later attempt mends; empty: nothing
  using Take = std::function<std::string(const HttpResponse& head, std::string_view bytes)>;

  /// @param call outlives it
  /// @throws ConfigError plain http without leave, a CA file that is not there; DataError the file
  HttpTransfer(const HttpCall& call, const HttpOptions& options, Take take);
  ~HttpTransfer();

  /// Some bytes, or some waiting (a quarter of a second at most). @return false at the end
  bool advance();
  /// The time until now was the caller's.
  void forget_silence() { last_byte_ = std::chrono::steady_clock::now(); }
  /// What went wrong; none if there is an answer, whose headers head() has.
  const std::optional<HttpFailure>& failure() const { return failure_; }
  const HttpResponse& head() const { return head_; }

 private:
  void begin();
  void set_up(CURL* easy);
  void set_headers(CURL* easy, bool keeps_login);
  void read_head();
  bool is_answer() const;
  bool leads_on() const;
  void finish(CURLcode result);
  void follow();
  void fail(HttpFailure failure);
  void moved(size_t bytes);
  size_t give_body(char* buffer, size_t capacity);
  size_t take_body(std::string_view bytes);
  void rewind_body(int64_t to);
  int64_t unsent() const;
  void look_for_stall();

  const HttpCall& call_;
  const std::string shown_;
  const double stall_seconds_;
  const bool is_once_;
  const Take take_;
  std::shared_ptr<CURLM> connections_;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_{nullptr, &curl_slist_free_all};
  std::unique_ptr<CURL, void (*)(CURL*)> easy_{nullptr, &curl_easy_cleanup};
  std::unique_ptr<std::istream> body_;
  int64_t body_size_ = 0, body_sent_ = 0;
  std::string method_;
  ParsedUrl url_;
  const ParsedUrl first_url_;
  int redirects_ = 0;
  bool has_ended_ = false, has_moved_ = false;
  std::optional<HttpFailure> failure_;
  // Of the response:
  HttpResponse head_;    // empty until all headers are there
  std::string refusal_;  // the beginning of its body
  std::string fault_;    // what take_ said
  char curl_text_[CURL_ERROR_SIZE] = "";
  // For look_for_stall():
  std::chrono::steady_clock::time_point last_byte_;
  double window_seconds_ = 0;  // waited since the rate was last looked at
  int64_t window_bytes_ = 0;   // that moved meanwhile
  int64_t unsent_ = 0;         // in the queue of the kernel
};

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
