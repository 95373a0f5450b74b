// SPDX-License-Identifier: MIT
#include "net/http_stream.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "net/http_session.h"

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPatience = 4;             ///< stall times without progress until the stream fails
constexpr int64_t kRealProgress = 1 << 16;  ///< bytes after which earlier failures are forgotten
constexpr double kFirstPause = 0.5, kLongestPause = 15;  ///< seconds
constexpr double kNoticeEvery = 15;                      ///< seconds of waiting
constexpr double kSlow = 1 << 14;                        ///< bytes a second that are worth a word
constexpr size_t kMostOfRefusal = 1 << 12;               ///< bytes of its body that are kept

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool is_worth_retrying(long status) {
  return status == 408 || status == 425 || status == 429 || status >= 500;
}

bool is_hopeless(CURLcode result) {
  return result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL ||
         result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE ||
         result == CURLE_TOO_MANY_REDIRECTS;
}

const char* advice(long status) {
  if (status == 401 || status == 403) return "Give an url that may be read: its login or signature";
  if (status == 404 || status == 410) return "There is no such file: check the url and its number";
  if (status == 429) return "The server asks for fewer requests: read with fewer threads";
  if (status >= 500) return "The server fails: try again later";
  return "Check that the url names a file";
}

}  // namespace

double net_timeout_seconds() {
  const char* text = std::getenv("DALLE2_NET_TIMEOUT");
  if (text == nullptr || *text == '\0') return 60;
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end != '\0' || !std::isfinite(seconds) || seconds <= 0) {
    throw ConfigError("DALLE2_NET_TIMEOUT is \"{}\": expected seconds, more than 0", text);
  }
  return seconds;
}

struct HttpStream::State {
  State(HttpGet asked, HttpOptions given)
      : request(std::move(asked)),
        shown(request.shown.empty() ? public_url(request.url) : request.shown),
        options(std::move(given)) {
    received = received_at_failure = options.offset;
  }

  size_t read(char* buffer, size_t capacity);
  void begin_attempt();
  void advance();
  void finish_attempt(CURLcode result);
  void fail_attempt(const std::string& reason,
                    double lost_seconds,
                    std::optional<double> retry_after = std::nullopt,
                    long status = 0);
  bool is_stalled();
  void poll(double stalled_seconds);
  [[noreturn]] void give_up(const std::string& reason, long status) const;
  void wait(double seconds);
  void check_cancelled() const;
  bool judge();
  size_t take_body(const char* data, size_t size);
  std::string shorter() const;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    State& state = *static_cast<State*>(self);
    state.last_byte = Clock::now();
    state.response.take_header({data, size});
    return size;
  }
  static size_t on_body(char* data, size_t, size_t size, void* self) {
    return static_cast<State*>(self)->take_body(data, size);
  }

  const HttpGet request;
  const std::string shown;
  const HttpOptions options;
  std::shared_ptr<HttpSession> session;  // during an attempt
  std::string body;                      // received, not handed out yet
  size_t handed_out = 0;                 // of body
  int64_t received = 0;                  // position in the file behind what came
  bool finished = false;
  bool known = false;  // a response has told the next two
  std::string etag;
  std::optional<int64_t> total;  // bytes of the file

  // Of the attempt:
  HttpResponse response;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers{nullptr, &curl_slist_free_all};
  std::optional<CURLcode> ended;
  std::string refusal;  // the beginning of its body
  bool judged = false, accepted = false;
  int64_t to_skip = 0;  // bytes known already, of a server without ranges
  std::string fault;    // that no retry mends
  Clock::time_point last_byte;
  double notice_at = 0;       // seconds without a byte
  double window_seconds = 0;  // waited since the rate was last looked at
  int64_t window_bytes = 0;   // that came meanwhile
  char curl_text[CURL_ERROR_SIZE] = "";

  // Of the attempts without progress:
  int failures = 0;
  double trouble_seconds = 0;
  int64_t received_at_failure = 0;  // when they began
};

size_t HttpStream::State::read(char* buffer, size_t capacity) {
  last_byte = Clock::now();  // the time the caller took is no stall
  while (handed_out == body.size() && !finished) advance();
  const size_t size = std::min(capacity, body.size() - handed_out);
  std::memcpy(buffer, body.data() + handed_out, size);
  handed_out += size;
  if (handed_out == body.size()) {
    body.clear();
    handed_out = 0;
  }
  return size;
}

void HttpStream::State::begin_attempt() {
  session = borrow_http_session();
  CURL* const easy = session->easy();
  response = HttpResponse{};
  refusal.clear();
  window_seconds = 0;
  window_bytes = 0;
  notice_at = std::min(kNoticeEvery, options.stall_seconds / 2);
  judged = accepted = false;
  to_skip = 0;
  curl_text[0] = '\0';
  last_byte = Clock::now();
  curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // a key may hold ".."
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  const bool secure = request.url.starts_with("https:");
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "dalle2-train");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(
      easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::ceil(options.stall_seconds * 1000)));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, curl_text);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &State::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &State::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  // Without If-Range: the ETag of the answer is compared, so that a change is told, not skipped.
  const std::string range = received > 0 ? fmt::format("bytes={}-", received) : "";
  std::vector<std::string> lines;
  if (request.headers) {
    lines = request.headers(range);
  } else if (!range.empty()) {
    lines.push_back("Range: " + range);
  }
  curl_slist* list = nullptr;
  for (const std::string& line : lines) list = curl_slist_append(list, line.c_str());
  headers.reset(list);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
  session->begin();
}

/// Some bytes, some waiting, or the end of an attempt.
void HttpStream::State::advance() {
  check_cancelled();
  if (ended) return finish_attempt(*std::exchange(ended, std::nullopt));
  if (!session) begin_attempt();
  int running = 0;
  curl_multi_perform(session->multi(), &running);
  int left = 0;
  if (const CURLMsg* message = curl_multi_info_read(session->multi(), &left)) {
    ended = message->data.result;
    return;  // what came before it is handed out first
  }
  if (handed_out == body.size() && !is_stalled()) poll(seconds_since(last_byte));
}

/// Fails the attempt if it has been silent, or next to it, for a stall time.
bool HttpStream::State::is_stalled() {
  const double silent = seconds_since(last_byte);
  if (silent >= options.stall_seconds) {
    fail_attempt(fmt::format("no byte for {:g} seconds", options.stall_seconds), silent);
    return true;
  }
  if (silent >= notice_at) {
    log_info("net", "{}: waiting for {:.0f} s at byte {}", shown, silent, received);
    notice_at += kNoticeEvery;
  }
  if (window_seconds < options.stall_seconds) return false;
  const double rate = static_cast<double>(window_bytes) / window_seconds;
  if (rate < kSlowestTransfer) {
    fail_attempt(fmt::format("only {} bytes in {:.3g} seconds", window_bytes, window_seconds),
                 window_seconds);
    return true;
  }
  if (rate < kSlow) log_info("net", "{}: {:.0f} bytes/s at byte {}", shown, rate, received);
  window_seconds = 0;
  window_bytes = 0;
  return false;
}

void HttpStream::State::poll(double stalled_seconds) {
  const Clock::time_point before = Clock::now();
  const double longest = std::clamp(options.stall_seconds - stalled_seconds, 0.0, 0.25);
  curl_multi_poll(session->multi(), nullptr, 0, static_cast<int>(longest * 1000) + 1, nullptr);
  window_seconds += seconds_since(before);
}

/// Compares the headers with what is known of the file, once an attempt.
/// @return false if the body cannot be used
bool HttpStream::State::judge() {
  if (std::exchange(judged, true)) return accepted;
  if (response.status != 200 && response.status != 206) return false;
  if (!known) {
    known = true;
    etag = response.etag;
    total = response.total();
  } else if ((!etag.empty() && !response.etag.empty() && etag != response.etag) ||
             (total && response.total() && *total != *response.total())) {
    fault = fmt::format("the file has changed at byte {} of the transfer", received);
    return false;
  }
  if (response.status == 206 && response.range_start.value_or(-1) != received) {
    fault = fmt::format("the server answers for another range than \"bytes={}-\"", received);
    return false;
  }
  to_skip = response.status == 200 ? received : 0;
  return accepted = true;
}

size_t HttpStream::State::take_body(const char* data, size_t size) {
  last_byte = Clock::now();
  notice_at = std::min(kNoticeEvery, options.stall_seconds / 2);
  window_bytes += static_cast<int64_t>(size);
  if (!judge()) {
    refusal.append(data, std::min(size, kMostOfRefusal - refusal.size()));
    return fault.empty() ? size : 0;
  }
  const size_t skipped =
      static_cast<size_t>(std::min<int64_t>(to_skip, static_cast<int64_t>(size)));
  to_skip -= static_cast<int64_t>(skipped);
  body.append(data + skipped, size - skipped);
  received += static_cast<int64_t>(size - skipped);
  return size;
}

std::string HttpStream::State::shorter() const {
  if (received > options.offset) return "the file has become shorter";
  return fmt::format("the file ends before byte {}", options.offset);
}

void HttpStream::State::finish_attempt(CURLcode result) {
  const long status = response.status;
  if (!fault.empty()) give_up(fault, 0);
  if (status == 416 && received > 0) {
    // Nothing stands behind the last byte that was asked for or came; else the file is another.
    if (!total) total = response.range_total;
    if (!total || *total != received) give_up(shorter(), 0);
    finished = true;
    return session.reset();
  }
  const std::string told = curl_text[0] != '\0' ? curl_text : curl_easy_strerror(result);
  if (is_hopeless(result)) give_up(told, 0);
  const bool refused = status != 0 && status != 200 && status != 206;
  if (refused) {
    const std::string reason = fmt::format("the server answers with status {}", status);
    if (!is_worth_retrying(status)) give_up(reason, status);
    return fail_attempt(reason, seconds_since(last_byte), response.retry_after, status);
  }
  if (result != CURLE_OK) return fail_attempt(told, seconds_since(last_byte));
  if (!judge()) give_up(fault, 0);
  if (to_skip > 0) give_up(shorter(), 0);
  if (total && received < *total) {
    return fail_attempt(fmt::format("{} of {} bytes came", received, *total),
                        seconds_since(last_byte));
  }
  finished = true;
  session.reset();
}

void HttpStream::State::fail_attempt(const std::string& reason,
                                     double lost_seconds,
                                     std::optional<double> retry_after,
                                     long status) {
  session.reset();
  if (received - received_at_failure >= kRealProgress) {
    failures = 0;
    trouble_seconds = 0;
    received_at_failure = received;
  }
  trouble_seconds += lost_seconds;
  ++failures;
  const double longest = std::min(kLongestPause, options.stall_seconds / 4);
  std::random_device device;  // ranks that failed together shall not come back together
  const double spread = 0.75 + 0.5 * static_cast<double>(device() % 1000) / 1000;
  const double growing = kFirstPause * std::pow(2.0, failures - 1) * spread;
  const double pause = retry_after.value_or(std::min(growing, longest));
  if (failures >= options.attempts || trouble_seconds + pause > kPatience * options.stall_seconds) {
    give_up(reason, status);
  }
  log_warning("net",
              "{}: {} at byte {}; attempt {} in {:.1f} s",
              shown,
              reason,
              received,
              failures + 1,
              pause);
  wait(pause);
  trouble_seconds += pause;
}

void HttpStream::State::give_up(const std::string& reason, long status) const {
  const std::string text =
      fmt::format("{}: {}{} ({} bytes came before)",
                  shown,
                  reason,
                  failures > 1 ? fmt::format(", after {} attempts", failures) : "",
                  received - options.offset);
  if (status != 0) {
    const std::string told = request.explain ? request.explain(response, refusal) : advice(status);
    throw HttpStatusError(status, "{}.\n  {}.", text, told);
  }
  throw NetworkError(
      "{}.\n  Check the address and the network; DALLE2_NET_TIMEOUT is the longest stall in "
      "seconds.",
      text);
}

void HttpStream::State::wait(double seconds) {
  const Clock::time_point start = Clock::now();
  while (seconds_since(start) < seconds) {
    check_cancelled();
    const double rest = std::min(0.05, seconds - seconds_since(start));
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(rest, 0.0)));
  }
}

void HttpStream::State::check_cancelled() const {
  if (stop_requested() != 0) throw StoppedError("{}: stopped by a signal", shown);
  if (options.cancelled && options.cancelled()) throw NetworkError("{}: cancelled", shown);
}

HttpStream::HttpStream(const std::string& url, HttpOptions options)
    : HttpStream(HttpGet{url}, std::move(options)) {}

HttpStream::HttpStream(HttpGet request, HttpOptions options)
    : state_(std::make_unique<State>(std::move(request), std::move(options))) {}

HttpStream::~HttpStream() = default;

size_t HttpStream::read(char* buffer, size_t capacity) {
  return state_->read(buffer, capacity);
}

std::string net_library_versions() {
  return std::string("libcurl ") + curl_version_info(CURLVERSION_NOW)->version + ", OpenSSL " +
         OpenSSL_version(OPENSSL_VERSION_STRING);
}

}  // namespace dalle2
