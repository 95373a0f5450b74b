// SPDX-License-Identifier: MIT
#include "net/http_stream.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>
#include <thread>

#include "base/log.h"
#include "net/http_session.h"
#include "net/url.h"

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kPatience = 4;             ///< stall times without progress until the stream fails
constexpr int64_t kRealProgress = 1 << 16;  ///< bytes after which earlier failures are forgotten
constexpr double kFirstPause = 0.5, kLongestPause = 15;  ///< seconds

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
  if (status == 429) return "The server asks for fewer requests: lower /data/num_workers";
  if (status >= 500) return "The server fails: try again later";
  return "Check that the url names a file";
}

std::optional<int64_t> to_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end == text.data()) return std::nullopt;
  return number;
}

/// What the headers of one response say.
struct Response {
  long status = 0;
  std::string etag;
  std::optional<int64_t> content_length, range_start, range_total;
  std::optional<double> retry_after;  ///< seconds

  std::optional<int64_t> total() const { return status == 206 ? range_total : content_length; }

  void take_header(std::string_view line) {
    while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
    if (line.starts_with("HTTP/")) {  // a redirect's or a proxy's headers came before
      *this = Response{};
      const size_t space = line.find(' ');
      if (space != std::string_view::npos) {
        status = static_cast<long>(to_number(line.substr(space + 1)).value_or(0));
      }
      return;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string name(line.substr(0, colon));
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    if (strcasecmp(name.c_str(), "etag") == 0) {
      etag = value;
    } else if (strcasecmp(name.c_str(), "content-length") == 0) {
      content_length = to_number(value);
    } else if (strcasecmp(name.c_str(), "content-range") == 0 && value.starts_with("bytes ")) {
      range_start = to_number(value.substr(6));
      range_total = to_number(value.substr(std::min(value.find('/'), value.size() - 1) + 1));
    } else if (strcasecmp(name.c_str(), "retry-after") == 0) {
      take_retry_after(std::string(value));
    }
  }

  /// Seconds, or a date.
  void take_retry_after(const std::string& value) {
    if (const auto seconds = to_number(value)) {
      retry_after = static_cast<double>(*seconds);
    } else if (const time_t date = curl_getdate(value.c_str(), nullptr); date > 0) {
      retry_after = std::max(std::difftime(date, std::time(nullptr)), 0.0);
    }
  }
};

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
  State(const std::string& address, HttpOptions given)
      : url(address), shown(public_url(address)), options(std::move(given)) {
    received = received_at_failure = options.offset;
  }

  size_t read(char* buffer, size_t capacity);
  void begin_attempt();
  void advance();
  void finish_attempt(CURLcode result);
  void fail_attempt(const std::string& reason, std::optional<double> retry_after, long status);
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

  const std::string url, shown;
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
  Response response;
  bool judged = false, accepted = false;
  int64_t to_skip = 0;  // bytes known already, of a server without ranges
  std::string fault;    // that no retry mends
  Clock::time_point last_byte;
  char curl_text[CURL_ERROR_SIZE] = "";

  // Of the attempts without progress:
  int failures = 0;
  double trouble_seconds = 0;
  int64_t received_at_failure = 0;
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
  response = Response{};
  judged = accepted = false;
  to_skip = 0;
  curl_text[0] = '\0';
  last_byte = Clock::now();
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  const bool secure = url.starts_with("https:");
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
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
  if (received > 0) curl_easy_setopt(easy, CURLOPT_RANGE, fmt::format("{}-", received).c_str());
  session->begin();
}

/// Some bytes, some waiting, or the end of an attempt.
void HttpStream::State::advance() {
  check_cancelled();
  if (!session) begin_attempt();
  int running = 0;
  curl_multi_perform(session->multi(), &running);
  int left = 0;
  if (const CURLMsg* message = curl_multi_info_read(session->multi(), &left)) {
    return finish_attempt(message->data.result);
  }
  if (handed_out < body.size()) return;
  const double stalled = seconds_since(last_byte);
  if (stalled >= options.stall_seconds) {
    return fail_attempt(
        fmt::format("no byte for {:g} seconds", options.stall_seconds), std::nullopt, 0);
  }
  const double poll = std::min(options.stall_seconds - stalled, 0.25);
  curl_multi_poll(session->multi(), nullptr, 0, static_cast<int>(poll * 1000) + 1, nullptr);
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
  if (!judge()) return fault.empty() ? size : 0;  // the text of a refusal is passed over
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
    return fail_attempt(reason, response.retry_after, status);
  }
  if (result != CURLE_OK) return fail_attempt(told, std::nullopt, 0);
  if (!judge()) give_up(fault, 0);
  if (to_skip > 0) give_up(shorter(), 0);
  if (total && received < *total) {
    return fail_attempt(fmt::format("{} of {} bytes came", received, *total), std::nullopt, 0);
  }
  finished = true;
  session.reset();
}

void HttpStream::State::fail_attempt(const std::string& reason,
                                     std::optional<double> retry_after,
                                     long status) {
  session.reset();
  if (received - received_at_failure >= kRealProgress) {
    failures = 0;
    trouble_seconds = 0;
  }
  received_at_failure = received;
  trouble_seconds += seconds_since(last_byte);
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
  if (status != 0) throw HttpStatusError(status, "{}.\n  {}.", text, advice(status));
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
  if (options.cancelled && options.cancelled()) throw NetworkError("{}: cancelled", shown);
}

HttpStream::HttpStream(const std::string& url, HttpOptions options)
    : state_(std::make_unique<State>(url, std::move(options))) {}

HttpStream::~HttpStream() = default;

size_t HttpStream::read(char* buffer, size_t capacity) {
  return state_->read(buffer, capacity);
}

}  // namespace dalle2
