// SPDX-License-Identifier: MIT
#include "net/http_stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "net/http_transfer.h"

namespace dalle2 {
namespace {

constexpr int64_t kRealProgress = 1 << 16;  ///< bytes after which earlier failures are forgotten
constexpr size_t kMostOfRefusal = 1 << 12;  ///< bytes of its body that are kept

}  // namespace

struct HttpStream::State {
  State(HttpGet asked, HttpOptions given)
      : request(std::move(asked)),
        shown(request.shown.empty() ? public_url(request.url) : request.shown),
        options(std::move(given)),
        watch(options.stall_seconds),
        retries(options.stall_seconds, options.attempts) {
    received = received_at_failure = options.offset;
  }

  size_t read(char* buffer, size_t capacity);
  void begin_attempt();
  void advance();
  void finish_attempt(CURLcode result);
  void fail_attempt(const HttpFailure& failure);
  [[noreturn]] void give_up(const std::string& reason, long status) const;
  void check_cancelled() const;
  bool judge();
  size_t take_body(const char* data, size_t size);
  std::string shorter() const;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    State& state = *static_cast<State*>(self);
    state.watch.moved(0);
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
  int64_t received = 0;                  // position in the file after what came
  bool finished = false;
  bool known = false;  // a response has told the next two
  std::string etag;
  std::optional<int64_t> total;  // bytes of the file

  StallWatch watch;
  HttpRetries retries;

  // Of the attempt:
  HttpResponse response;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers{nullptr, &curl_slist_free_all};
  std::optional<CURLcode> ended;
  std::string refusal;  // the beginning of its body
  bool judged = false, accepted = false;
  int64_t to_skip = 0;  // bytes known already, of a server without ranges
  std::string fault;    // that no retry mends
  char curl_text[CURL_ERROR_SIZE] = "";

  int64_t received_at_failure = 0;  // when the attempts without progress began
};

size_t HttpStream::State::read(char* buffer, size_t capacity) {
  watch.forget_silence();
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
  judged = accepted = false;
  to_skip = 0;
  curl_text[0] = '\0';
  watch.begin_attempt();
  set_up_transfer(easy, request.url, options.stall_seconds);
  if (request.netrc) set_netrc_login(easy, request.url);
  const bool secure = lower_case(request.url.substr(0, 6)) == "https:";
  curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, secure ? "https" : "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, request.follow_redirects ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 10L);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, curl_text);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &State::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &State::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  // Without If-Range: the ETag of the answer is compared, so that a change is reported, not skipped.
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
  if (handed_out < body.size()) return;
  if (const std::optional<HttpFailure> stall = watch.stalled(shown, received)) {
    return fail_attempt(*stall);
  }
  watch.poll(*session);
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
  watch.moved(static_cast<int64_t>(size));
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
    // Nothing stands after the last byte that was asked for or came; else the file is another.
    if (!total) total = response.range_total;
    if (!total || *total != received) give_up(shorter(), 0);
    finished = true;
    return session.reset();
  }
  const std::string told = curl_reason(curl_text, result);
  if (is_hopeless(result)) give_up(told, 0);
  // The status of a redirect says nothing of a place behind it that cannot be reached.
  const bool is_lost = result != CURLE_OK && status >= 300 && status < 400;
  const bool refused = status != 0 && status != 200 && status != 206 && !is_lost;
  if (refused) {
    const std::string reason = fmt::format("the server answers with status {}", status);
    if (!is_worth_retrying(status)) give_up(reason, status);
    return fail_attempt({reason, watch.silent_seconds(), response.retry_after, status});
  }
  if (result != CURLE_OK) return fail_attempt({told, watch.silent_seconds()});
  if (!judge()) give_up(fault, 0);
  if (to_skip > 0) give_up(shorter(), 0);
  if (total && received < *total) {
    return fail_attempt(
        {fmt::format("{} of {} bytes came", received, *total), watch.silent_seconds()});
  }
  finished = true;
  session.reset();
}

void HttpStream::State::fail_attempt(const HttpFailure& failure) {
  session.reset();
  if (received - received_at_failure >= kRealProgress) {
    retries.forget();
    received_at_failure = received;
  }
  const std::optional<double> pause = retries.pause_after(failure);
  if (!pause) give_up(failure.reason, failure.status);
  log_warning("net",
              "{}: {} at byte {}; attempt {} in {:.1f} s",
              shown,
              failure.reason,
              received,
              retries.failures() + 1,
              *pause);
  wait_seconds(*pause, [this] { check_cancelled(); });
}

void HttpStream::State::give_up(const std::string& reason, long status) const {
  const std::string text = fmt::format(
      "{}: {}{} ({} bytes came before)",
      shown,
      reason,
      retries.failures() > 1 ? fmt::format(", after {} attempts", retries.failures()) : "",
      received - options.offset);
  if (status != 0) {
    const std::string told =
        request.explain ? request.explain(response, refusal) : status_advice(status);
    throw HttpStatusError(status, "{}.\n  {}.", text, told);
  }
  throw NetworkError(
      "{}.\n  Check the address and the network; DALLE2_NET_TIMEOUT is the longest stall in "
      "seconds.",
      text);
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

}  // namespace dalle2
