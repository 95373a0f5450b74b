// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/http_transfer.h"
#include "net/parsed_url.h"
#include "net/service_words.h"

namespace dalle2 {
namespace {

constexpr int kMostRedirects = 10;

/// Headers that say what the content is, and tell no secret.
bool describes_content(const std::string& line) {
  constexpr std::array<std::string_view, 4> kNames = {
      "accept:", "content-type:", "content-encoding:", "range:"};
  const std::string small = lower_case(line);
  return std::any_of(
      kNames.begin(), kNames.end(), [&](std::string_view name) { return small.starts_with(name); });
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/// The body of a request, from memory or from a file.
class Upload {
 public:
  explicit Upload(const HttpCall& call) : call_(call) {
    if (!call.file) {
      size_ = static_cast<int64_t>(call.body.size());
      return;
    }
    std::error_code error;
    const auto length = static_cast<int64_t>(std::filesystem::file_size(call.file->path, error));
    if (error) throw DataError("{}: cannot be read: {}", call.file->path, error.message());
    size_ = call.file->size.value_or(length - call.file->offset);
    if (call.file->offset < 0 || size_ < 0 || call.file->offset + size_ > length) {
      throw DataError("{}: bytes {} to {} should be sent, but the file has {}",
                      call.file->path,
                      call.file->offset,
                      call.file->offset + size_,
                      length);
    }
    file_.open(call.file->path, std::ios::binary);
    if (!file_) throw DataError("{}: cannot be read", call.file->path);
  }

  int64_t size() const { return size_; }
  /// What stopped the reading; empty if nothing did.
  const std::string& fault() const { return fault_; }

  void rewind(int64_t to) {
    sent_ = to;
    if (!call_.file) return;
    file_.clear();
    file_.seekg(call_.file->offset + to);
  }
  size_t read(char* buffer, size_t capacity) {
    const auto size =
        static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(capacity), size_ - sent_));
    if (!call_.file) {
      std::memcpy(buffer, call_.body.data() + sent_, size);
    } else {
      file_.read(buffer, static_cast<std::streamsize>(size));
      if (static_cast<size_t>(file_.gcount()) != size) {
        fault_ = "the file became shorter while it was sent";
        return CURL_READFUNC_ABORT;
      }
    }
    sent_ += static_cast<int64_t>(size);
    return size;
  }

 private:
  const HttpCall& call_;
  std::ifstream file_;
  int64_t size_ = 0, sent_ = 0;
  std::string fault_;
};

/// One call through all its attempts.
class Calling {
 public:
  Calling(const HttpCall& call, const HttpCallOptions& options)
      : call_(call),
        shown_(call.shown.empty() ? public_url(call.url) : call.shown),
        options_(options),
        upload_(call),
        watch_(options.stall_seconds),
        retries_(options.stall_seconds, options.attempts) {
    if (options.most_asked_seconds) retries_.set_most_asked(*options.most_asked_seconds);
  }

  HttpAnswer run() {
    for (;;) {
      const std::optional<HttpFailure> failure = attempt();
      if (!failure) return std::move(answer_);
      const std::optional<double> pause = retries_.pause_after(*failure);
      if (!pause) give_up(failure->reason, failure->status, /*passes=*/true);
      if (options_.says_retries) {
        log_warning("net",
                    "{}: {}; attempt {} in {:.1f} s",
                    shown_,
                    failure->reason,
                    retries_.failures() + 1,
                    *pause);
      }
      wait_seconds(*pause, [this] { check_going_on(); });
    }
  }

 private:
  std::optional<HttpFailure> attempt();
  std::optional<HttpFailure> transfer(const ParsedUrl& url, bool keeps_login);
  void set_up(CURL* easy, const std::string& url);
  std::optional<CURLcode> perform(HttpSession& session);
  bool leads_elsewhere(const ParsedUrl& url) const;
  void redirect(ParsedUrl& url);
  void check_scheme(const ParsedUrl& url) const;
  void check_going_on() const;
  [[noreturn]] void give_up(const std::string& reason, long status, bool passes = false) const;

  static size_t on_header(char* data, size_t, size_t size, void* self) {
    Calling& calling = *static_cast<Calling*>(self);
    calling.watch_.moved(0);
    calling.answer_.head.take_header({data, size});
    return size;
  }
  static size_t on_body(char* data, size_t, size_t size, void* self) {
    Calling& calling = *static_cast<Calling*>(self);
    calling.watch_.moved(static_cast<int64_t>(size));
    if (calling.answer_.body.size() + size > calling.call_.most_bytes) {
      calling.fault_ = fmt::format("the answer has more than {} bytes", calling.call_.most_bytes);
      return 0;
    }
    calling.answer_.body.append(data, size);
    return size;
  }
  static size_t on_upload(char* data, size_t, size_t capacity, void* self) {
    Calling& calling = *static_cast<Calling*>(self);
    const size_t size = calling.upload_.read(data, capacity);
    if (size != CURL_READFUNC_ABORT) calling.watch_.moved(static_cast<int64_t>(size));
    return size;
  }
  static int on_seek(void* self, curl_off_t offset, int) {
    static_cast<Calling*>(self)->upload_.rewind(offset);
    return CURL_SEEKFUNC_OK;
  }

  const HttpCall& call_;
  const std::string shown_;
  const HttpCallOptions& options_;
  Upload upload_;
  StallWatch watch_;
  HttpRetries retries_;
  // Of the attempt:
  std::string method_;
  HttpAnswer answer_;
  std::string fault_;  // that no retry mends
  std::optional<HttpFailure> stall_;
  std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_{nullptr, &curl_slist_free_all};
  char curl_text_[CURL_ERROR_SIZE] = "";
};

/// From the call's own address through its redirects. @return none if there is an answer
std::optional<HttpFailure> Calling::attempt() {
  method_ = call_.method;
  ParsedUrl url(call_.url);
  if (!url.is_valid()) give_up("this is not an http(s) address", 0);
  const std::string origin = url.origin();
  for (int redirects = 0;; ++redirects) {
    check_scheme(url);
    if (auto failure = transfer(url, url.origin() == origin)) return failure;
    const long status = answer_.status();
    if (status >= 200 && status < 300) return std::nullopt;
    if (std::find(call_.accepted.begin(), call_.accepted.end(), status) != call_.accepted.end()) {
      return std::nullopt;
    }
    if (call_.ends_at_other_host && leads_elsewhere(url)) return std::nullopt;
    if (!is_redirect(status) || answer_.header("location").empty()) {
      const std::string reason = fmt::format("the server answers with status {}", status);
      if (!is_worth_retrying(status)) give_up(reason, status);
      const std::optional<double> asked = answer_.head.retry_after;
      return HttpFailure{
          asked ? fmt::format("{} and asks to wait {:.0f} s", reason, *asked) : reason,
          0,
          asked,
          status};
    }
    if (redirects == kMostRedirects) {
      give_up(fmt::format("more than {} redirects", kMostRedirects), 0);
    }
    redirect(url);
  }
}

/// Whether the answer is a redirect to another scheme, host or port.
bool Calling::leads_elsewhere(const ParsedUrl& url) const {
  const std::string location = answer_.header("location");
  if (!is_redirect(answer_.status()) || location.empty()) return false;
  ParsedUrl next(url.whole());
  return next.go_to(location) && next.origin() != url.origin();
}

void Calling::redirect(ParsedUrl& url) {
  const bool was_secure = url.scheme() == "https";
  if (!url.go_to(answer_.header("location"))) give_up("a redirect names no http(s) address", 0);
  if (was_secure && url.scheme() != "https") {
    give_up("a redirect leads from https to plain http: " + public_url(url.whole()), 0);
  }
  // As every client does: 303 asks for the answer by GET, and 301 and 302 do so after a POST.
  const long status = answer_.status();
  if (status == 303 || ((status == 301 || status == 302) && method_ == "POST")) method_ = "GET";
}

void Calling::check_scheme(const ParsedUrl& url) const {
  const std::string scheme = url.scheme();
  if (scheme == "https" || (scheme == "http" && (call_.plain_http || url.is_loopback()))) return;
  if (scheme != "http") give_up("http or https is expected, got " + scheme, 0);
  throw ConfigError(
      "{}: plain http to another machine is refused, because others could read the login and "
      "change the content.\n  Give an https address.",
      shown_);
}

void Calling::set_up(CURL* easy, const std::string& url) {
  set_up_transfer(easy, url, options_.stall_seconds);
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, curl_text_);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, &Calling::on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Calling::on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, this);
  const bool sends = method_ == "POST" || method_ == "PUT" || method_ == "PATCH" ||
                     (method_ == call_.method && upload_.size() > 0);
  if (sends) {
    upload_.rewind(0);
    curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(easy, CURLOPT_READFUNCTION, &Calling::on_upload);
    curl_easy_setopt(easy, CURLOPT_READDATA, this);
    curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, &Calling::on_seek);
    curl_easy_setopt(easy, CURLOPT_SEEKDATA, this);
    curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(upload_.size()));
  } else if (method_ == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  }
  curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method_.c_str());
}

/// @return none if it stalled (stall_ says why)
std::optional<CURLcode> Calling::perform(HttpSession& session) {
  for (;;) {
    check_going_on();
    int running = 0, left = 0;
    curl_multi_perform(session.multi(), &running);
    if (const CURLMsg* message = curl_multi_info_read(session.multi(), &left)) {
      return message->data.result;
    }
    curl_off_t sent = 0;
    curl_easy_getinfo(session.easy(), CURLINFO_SIZE_UPLOAD_T, &sent);
    stall_ = watch_.stalled(shown_, sent);
    if (stall_) return std::nullopt;
    watch_.poll(session);
  }
}

/// One request and its answer, whatever its status.
std::optional<HttpFailure> Calling::transfer(const ParsedUrl& url, bool keeps_login) {
  const std::shared_ptr<HttpSession> session = borrow_http_session();
  answer_ = HttpAnswer{};
  answer_.shown = shown_;
  fault_.clear();
  curl_text_[0] = '\0';
  watch_.begin_attempt();
  const std::string address = url.whole();
  set_up(session->easy(), address);
  // No wait for "100 Continue", which few services send.
  curl_slist* list = curl_slist_append(nullptr, "Expect:");
  for (const std::string& line : call_.headers) {
    if (keeps_login || describes_content(line)) list = curl_slist_append(list, line.c_str());
  }
  headers_.reset(list);
  curl_easy_setopt(session->easy(), CURLOPT_HTTPHEADER, list);
  if (call_.netrc && keeps_login) set_netrc_login(session->easy(), address);
  session->begin();
  const std::optional<CURLcode> result = perform(*session);
  if (!result) return stall_;
  if (!upload_.fault().empty()) throw DataError("{}: {}", call_.file->path, upload_.fault());
  if (!fault_.empty()) give_up(fault_, 0);
  // A refusal may come before the whole body was sent.
  if (*result == CURLE_OK || (*result == CURLE_SEND_ERROR && answer_.status() >= 400)) {
    return std::nullopt;
  }
  const std::string reason = curl_reason(curl_text_, *result);
  if (is_hopeless(*result)) give_up(reason, 0);
  return HttpFailure{reason, watch_.silent_seconds()};
}

void Calling::check_going_on() const {
  if (options_.ends_at_stop && stop_requested() != 0) {
    throw StoppedError("{}: stopped by a signal", shown_);
  }
  if (options_.cancelled && options_.cancelled()) throw NetworkError("{}: cancelled", shown_);
  if (options_.deadline && std::chrono::steady_clock::now() >= *options_.deadline) {
    throw NetworkError("{}: not done in the time that was left for it", shown_);
  }
}

/// @param passes a later call may succeed
void Calling::give_up(const std::string& reason, long status, bool passes) const {
  const int attempts = std::max(retries_.failures(), 1);
  const std::string text =
      fmt::format("{}: {}{}",
                  shown_,
                  public_text(reason),
                  attempts > 1 ? fmt::format(", after {} attempts", attempts) : "");
  if (status != 0) {
    const std::string advice = call_.explain ? call_.explain(answer_) : status_advice(status);
    throw HttpStatusError(status, "{}.\n  {}.", text, advice);
  }
  constexpr const char* kAdvice =
      "Check the address and the network; DALLE2_NET_TIMEOUT is the longest stall in seconds.";
  if (passes) throw UnreachableError("{}.\n  {}", text, kAdvice);
  throw NetworkError("{}.\n  {}", text, kAdvice);
}

}  // namespace

HttpAnswer http_call(const HttpCall& call, const HttpCallOptions& options) {
  return Calling(call, options).run();
}

std::string basic_authorization(const std::string& user, const std::string& password) {
  return "Authorization: Basic " + base64(user + ":" + password);
}

bool is_loopback_url(const std::string& url) {
  const ParsedUrl parsed(url);
  return parsed.is_valid() && parsed.is_loopback();
}

Json json_of(const HttpAnswer& answer) {
  ParsedJson parsed = parse_untrusted_json(answer.body);
  if (parsed.is_right()) return std::move(parsed.value);
  throw NetworkError(
      "{}: the answer (status {}, {} bytes) is not JSON: {}.\n  Check the address: another server "
      "or a proxy's login page may answer there.",
      answer.shown,
      answer.status(),
      answer.body.size(),
      without_tokens(service_words(parsed.fault, {})));  // it may quote the answer
}

Json http_json(HttpCall call, const Json& content, const HttpCallOptions& options) {
  call.headers.emplace_back("Accept: application/json");
  if (!content.is_null()) {
    call.headers.emplace_back("Content-Type: application/json");
    // Captions may hold bytes that are not UTF-8.
    call.body = json_line(content);
  }
  return json_of(http_call(call, options));
}

}  // namespace dalle2
