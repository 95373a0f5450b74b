// SPDX-License-Identifier: MIT
#include "net/http_transfer.h"

#include <openssl/crypto.h>

#include <curl/curl.h>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/login_files.h"
#include "net/parsed_url.h"

namespace dalle2 {
namespace {

/// More idle sessions than loader threads of a large run are closed.
constexpr size_t kMostIdle = 64;

struct Idle {
  std::mutex mutex;
  std::vector<std::unique_ptr<HttpSession>> sessions;
};

/// Never destroyed: a thread may still hand a session back while the process ends.
Idle& idle() {
  static Idle* const instance = [] {
    curl_global_init(CURL_GLOBAL_DEFAULT);
    return new Idle;
  }();
  return *instance;
}

std::optional<int64_t> to_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end == text.data()) return std::nullopt;
  return number;
}

constexpr double kPatience = 4;  ///< stall times without progress until a transfer fails
constexpr double kFirstPause = 0.5, kLongestPause = 15;  ///< seconds
constexpr double kNoticeEvery = 15;                      ///< seconds of waiting
constexpr double kSlow = 1 << 14;                        ///< bytes a second that are worth a word

}  // namespace

static std::atomic<int> attempts_of_transfers{8};

int net_attempts() {
  return attempts_of_transfers;
}

void try_hosts_once() {
  attempts_of_transfers = 1;
}

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

std::string net_library_versions() {
  return std::string("libcurl ") + curl_version_info(CURLVERSION_NOW)->version + ", OpenSSL " +
         OpenSSL_version(OPENSSL_VERSION_STRING);
}

bool is_worth_retrying(long status) {
  return status == 408 || status == 425 || status == 429 || status >= 500;
}

bool is_hopeless(CURLcode result) {
  return result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL ||
         result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE ||
         result == CURLE_TOO_MANY_REDIRECTS;
}

std::string curl_reason(const char* text, CURLcode result) {
  if (*text == '\0') return curl_easy_strerror(result);
  std::string reason = text;
  const size_t begin = reason.find('\''), end = reason.rfind('\'');
  if (lower_case(reason).find("proxy") != std::string::npos && begin < end) {
    reason.replace(begin, end + 1 - begin, "the variable http_proxy, https_proxy or all_proxy");
  }
  return public_text(reason);
}

bool may_pass(const NetworkError& error) {
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  if (refused != nullptr) return is_worth_retrying(refused->status());
  return dynamic_cast<const UnreachableError*>(&error) != nullptr;
}

const char* status_advice(long status) {
  if (status == 401 || status == 403) return "Give a url that may be read: its login or signature";
  if (status == 404 || status == 410) return "There is no such file: check the url and its number";
  if (status == 429) return "The server asks for fewer requests: read with fewer threads";
  if (status >= 500) return "The server fails: try again later";
  return "Check that the url names a file";
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double StallWatch::first_notice() const {
  return std::min(kNoticeEvery, stall_seconds_ / 2);
}

void StallWatch::begin_attempt() {
  window_seconds_ = 0;
  window_bytes_ = 0;
  notice_at_ = first_notice();
  last_byte_ = Clock::now();
}

void StallWatch::moved(int64_t bytes) {
  last_byte_ = Clock::now();
  if (bytes <= 0) return;
  notice_at_ = first_notice();
  window_bytes_ += bytes;
}

void StallWatch::poll(const HttpSession& session) {
  const Clock::time_point before = Clock::now();
  const double longest = std::clamp(stall_seconds_ - silent_seconds(), 0.0, 0.25);
  curl_multi_poll(session.multi(), nullptr, 0, static_cast<int>(longest * 1000) + 1, nullptr);
  window_seconds_ += seconds_since(before);
}

std::optional<HttpFailure> StallWatch::stalled(const std::string& shown, int64_t at) {
  const double silent = silent_seconds();
  if (silent >= stall_seconds_) {
    return HttpFailure{fmt::format("no byte for {:g} seconds", stall_seconds_), silent};
  }
  if (silent >= notice_at_) {
    log_info("net", "{}: waiting for {:.0f} s at byte {}", shown, silent, at);
    notice_at_ += kNoticeEvery;
  }
  if (window_seconds_ < stall_seconds_) return std::nullopt;
  const double rate = static_cast<double>(window_bytes_) / window_seconds_;
  if (rate < kSlowestTransfer) {
    return HttpFailure{
        fmt::format("only {} bytes in {:.3g} seconds", window_bytes_, window_seconds_),
        window_seconds_};
  }
  if (rate < kSlow) log_info("net", "{}: {:.0f} bytes/s at byte {}", shown, rate, at);
  window_seconds_ = 0;
  window_bytes_ = 0;
  return std::nullopt;
}

void HttpRetries::forget() {
  failures_ = 0;
  trouble_seconds_ = 0;
}

std::optional<double> HttpRetries::pause_after(const HttpFailure& failure) {
  trouble_seconds_ += failure.lost_seconds;
  ++failures_;
  const double longest = std::min(kLongestPause, stall_seconds_ / 4);
  std::random_device device;  // ranks that failed together shall not come back together
  const double spread = 0.75 + 0.5 * static_cast<double>(device() % 1000) / 1000;
  const double growing = kFirstPause * std::pow(2.0, failures_ - 1) * spread;
  const double pause = failure.retry_after.value_or(std::min(growing, longest));
  if (failure.retry_after.value_or(0) > most_asked_) return std::nullopt;
  if (failures_ >= attempts_ || trouble_seconds_ + pause > kPatience * stall_seconds_) {
    return std::nullopt;
  }
  trouble_seconds_ += pause;
  return pause;
}

void wait_seconds(double seconds, const std::function<void()>& check) {
  const auto start = std::chrono::steady_clock::now();
  while (seconds_since(start) < seconds) {
    check();
    const double rest = std::min(0.05, seconds - seconds_since(start));
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(rest, 0.0)));
  }
}

void set_up_transfer(CURL* easy, const std::string& url, double stall_seconds) {
  curl_easy_setopt(easy, CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);  // a key may hold ".."
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "dalle2-train");
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  // The end of a transfer waits for no name server that hangs: a stop signal has seconds.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(
      easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::ceil(stall_seconds * 1000)));
}

/// By our own reader: libcurl's would look again, for the host that a redirect leads to.
void set_netrc_login(CURL* easy, const std::string& url) {
  const ParsedUrl parsed(url);
  if (!parsed.is_valid() || !parsed.password().empty() || parsed.is_signed()) return;
  std::string host = parsed.host();
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  const std::optional<NetrcLogin> login = netrc_login(read_netrc().text, host, parsed.user());
  if (!login) return;
  curl_easy_setopt(easy, CURLOPT_USERNAME, login->user.c_str());
  curl_easy_setopt(easy, CURLOPT_PASSWORD, login->password.c_str());
}

void HttpResponse::take_header(std::string_view line) {
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // a redirect's or a proxy's headers came before
    *this = HttpResponse{};
    const size_t space = line.find(' ');
    if (space != std::string_view::npos) {
      status = static_cast<long>(to_number(line.substr(space + 1)).value_or(0));
    }
    return;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string name = lower_case(line.substr(0, colon));
  std::string_view value = line.substr(colon + 1);
  while (value.starts_with(' ')) value.remove_prefix(1);
  headers[name] = value;
  if (name == "etag") {
    etag = value;
  } else if (name == "content-length") {
    content_length = to_number(value);
  } else if (name == "content-range" && value.starts_with("bytes ")) {
    range_start = to_number(value.substr(6));
    range_total = to_number(value.substr(std::min(value.find('/'), value.size() - 1) + 1));
  } else if (name == "x-amz-bucket-region") {
    bucket_region = value;
  } else if (name == "retry-after") {
    take_retry_after(std::string(value));
  }
}

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

/// Seconds, or a date.
void HttpResponse::take_retry_after(const std::string& value) {
  if (const auto seconds = to_number(value)) {
    retry_after = static_cast<double>(*seconds);
  } else if (const time_t date = curl_getdate(value.c_str(), nullptr); date > 0) {
    retry_after = std::max(std::difftime(date, std::time(nullptr)), 0.0);
  }
}

HttpSession::HttpSession() : multi_(curl_multi_init()), easy_(curl_easy_init()) {
  if (multi_ == nullptr || easy_ == nullptr) throw ResourceError("out of memory for a transfer");
}

HttpSession::~HttpSession() {
  end();
  curl_easy_cleanup(easy_);
  curl_multi_cleanup(multi_);
}

void HttpSession::begin() {
  curl_multi_add_handle(multi_, easy_);
  running_ = true;
}

void HttpSession::end() {
  if (std::exchange(running_, false)) curl_multi_remove_handle(multi_, easy_);
  if (easy_ != nullptr) curl_easy_reset(easy_);
}

std::shared_ptr<HttpSession> borrow_http_session() {
  Idle& pool = idle();
  std::unique_ptr<HttpSession> session;
  {
    const std::lock_guard lock(pool.mutex);
    if (!pool.sessions.empty()) {
      session = std::move(pool.sessions.back());
      pool.sessions.pop_back();
    }
  }
  if (!session) session = std::make_unique<HttpSession>();
  return {session.release(), [&pool](HttpSession* used) {
            std::unique_ptr<HttpSession> owned(used);
            owned->end();
            const std::lock_guard lock(pool.mutex);
            if (pool.sessions.size() < kMostIdle) pool.sessions.push_back(std::move(owned));
          }};
}

}  // namespace dalle2
