// SPDX-License-Identifier: MIT
#include "net/http_transfer.h"

#include <linux/sockios.h>
#include <openssl/crypto.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <span>
#include <sstream>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"

namespace dalle2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostIdle = 64;  ///< sets of connections: loader threads of a large run
constexpr int kMostRedirects = 10;
constexpr size_t kMostOfRefusal = 1 << 16;  ///< bytes of its body that are kept

constexpr double kPatience = 4;  ///< stall times without progress until a transfer fails
constexpr double kFirstPause = 0.5, kLongestPause = 15;  ///< seconds
constexpr double kSlowest = 128;  ///< bytes a second; a transfer below is cut and begun again

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::atomic<Clock::time_point> last_progress;

/// Connections that stay open from one transfer to the next. Back among the idle ones with the pointer.
std::shared_ptr<CURLM> borrow_connections() {
  struct Idle {
    std::mutex mutex;
    std::vector<CURLM*> all{};
  };
  // Never destroyed: a thread may still hand connections back while the process ends.
  static Idle& idle = (curl_global_init(CURL_GLOBAL_DEFAULT), *new Idle);
  const std::lock_guard lock(idle.mutex);
  CURLM* const multi = idle.all.empty() ? curl_multi_init() : idle.all.back();
  if (multi == nullptr) throw ResourceError("out of memory for a transfer");
  if (!idle.all.empty()) idle.all.pop_back();
  return {multi, [](CURLM* used) {
            const std::lock_guard returning(idle.mutex);
            if (idle.all.size() < kMostIdle) return idle.all.push_back(used);
            curl_multi_cleanup(used);
          }};
}

/// Headers that say what the content is, and tell no secret.
bool describes_content(const std::string& line) {
  constexpr std::array<std::string_view, 4> kNames = {
      "accept:", "content-type:", "content-encoding:", "range:"};
  const std::string small = lower_case(line);
  return std::ranges::any_of(kNames,
                             [&](std::string_view name) { return small.starts_with(name); });
}

/// What libcurl says of a failure. It names a proxy that cannot be used with its login.
std::string curl_reason(const char* text, CURLcode result) {
  if (*text == '\0') return curl_easy_strerror(result);
  std::string reason = text;
  const size_t begin = reason.find('\''), end = reason.rfind('\'');
  if (lower_case(reason).find("proxy") != std::string::npos && begin < end) {
    reason.replace(begin, end + 1 - begin, "the variable http_proxy, https_proxy or all_proxy");
  }
  return public_text(reason);
}

/// The variables that name a file or folder of certificates, the first one first: AWS_CA_BUNDLE for S3.
constexpr const char* kAuthorities[] = {
    "AWS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};

/// "SSL_CERT_FILE" and its value; both empty if none is set.
std::pair<std::string, std::string> authorities(bool is_s3) {
  for (const char* name : std::span(kAuthorities).subspan(is_s3 ? 0 : 1)) {
    if (std::string path = environment(name); !path.empty()) return {name, std::move(path)};
  }
  return {};
}

void set_authorities(CURL* easy, bool is_s3) {
  const auto [variable, path] = authorities(is_s3);
  if (path.empty()) return;
  std::error_code error;
  const bool is_folder = std::filesystem::is_directory(path, error);
  if (!is_folder && !std::ifstream(path)) {
    throw ConfigError(
        "{}: '{}' cannot be read: expected a file of certificates (PEM)\n  Name one that is there, or "
        "unset the variable.",
        variable,
        path);
  }
  curl_easy_setopt(easy, is_folder ? CURLOPT_CAPATH : CURLOPT_CAINFO, path.c_str());
}

std::string certificate_advice(bool is_s3) {
  const auto [variable, path] = authorities(is_s3);
  return fmt::format(
      "Certificates are checked by {}. If the server's is signed by others, name a PEM file with theirs "
      "in {}",
      variable.empty() ? "those of the system" : variable + "=" + path,
      fmt::join(std::span(kAuthorities).subspan(is_s3 ? 0 : 1), " or "));
}

/// The body of a request and its size, from its first byte on.
std::pair<std::unique_ptr<std::istream>, int64_t> open_body(const HttpCall& call) {
  if (!call.file) return {std::make_unique<std::istringstream>(call.body), call.body.size()};
  const auto& [path, from, asked] = *call.file;
  std::error_code error;
  const auto length = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) throw DataError("{}: cannot be read: {}", path, error.message());
  const int64_t size = asked.value_or(length - from), to = from + size;
  if (from < 0 || size < 0 || to > length) {
    throw DataError(
        "{}: bytes {} to {} should be sent, but the file has {}", path, from, to, length);
  }
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!*file) throw DataError("{}: cannot be read", path);
  return {std::move(file), size};
}

std::atomic<int> attempts_of_transfers{8};

constexpr int64_t kRealProgress = 1 << 16;  ///< bytes after which earlier failures are forgotten
constexpr long kWhole = 200, kPart = 206, kBehindTheEnd = 416;

}  // namespace

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

bool may_pass(const NetworkError& error) {
  const auto* refused = dynamic_cast<const HttpStatusError*>(&error);
  if (refused != nullptr) return is_worth_retrying(refused->status());
  return dynamic_cast<const UnreachableError*>(&error) != nullptr;
}

const char* status_advice(long status) {
  if (status == 401 || status == 403) return "Give a url that may be read: its login or signature";
  if (status == 404 || status == 410) return "There is no such file: check the url and its number";
  if (status == 413) return "The server, or a proxy before it, takes no body of that size";
  if (status == 429)
    return "The server takes no more requests for now: the same one may succeed later";
  if (status == 507) return "There is no space left at the server";
  if (status >= 500) return "The server fails: try again later";
  return "Check that the url names a file";
}

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

std::function<std::string(const HttpAnswer&)> advice_for(std::map<long, std::string> texts) {
  return [texts = std::move(texts)](const HttpAnswer& answer) -> std::string {
    const auto found = texts.find(answer.status());
    return found == texts.end() ? status_advice(answer.status()) : found->second;
  };
}

HttpAttempts::HttpAttempts(const HttpCall& call, const HttpOptions& options)
    : shown_(call.shown.empty() ? public_url(call.url) : call.shown), options_(options) {}

void HttpAttempts::check() const {
  if (options_.ends_at_stop && stop_requested() != 0) {
    throw StoppedError("{}: stopped by a signal", shown_);
  }
  if (options_.cancelled && options_.cancelled()) throw NetworkError("{}: cancelled", shown_);
  if (options_.deadline && Clock::now() >= *options_.deadline) {
    throw UnreachableError("{}: not done in the time that was left for it", shown_);
  }
}

void HttpAttempts::after(const HttpFailure& failure, const std::string& where) {
  if (options_.on_fault && !failure.is_final && !failure.is_cut) options_.on_fault();
  trouble_seconds_ += failure.lost_seconds;
  ++failures_;
  const double longest = std::min(kLongestPause, options_.stall_seconds / 4);
  std::random_device device;  // ranks that failed together shall not come back together
  const double spread = 0.75 + 0.5 * static_cast<double>(device() % 1000) / 1000;
  const double growing = kFirstPause * std::pow(2.0, failures_ - 1) * spread;
  const double pause = failure.retry_after.value_or(std::min(growing, longest));
  trouble_seconds_ += pause;
  const bool is_late = options_.deadline && seconds_since(*options_.deadline) + pause >= 0;
  if (failure.is_final || failures_ >= options_.attempts || is_late ||
      trouble_seconds_ > kPatience * options_.stall_seconds) {
    give_up(failure, where);
  }
  if (options_.says_retries) {
    log_warning("net",
                "{}: {}{}; attempt {} in {:.1f} s",
                shown_,
                failure.reason,
                where,
                failures_ + 1,
                pause);
  }
  for (const auto start = Clock::now(); seconds_since(start) < pause;) {
    check();
    const double rest = std::min(0.05, pause - seconds_since(start));
    std::this_thread::sleep_for(std::chrono::duration<double>(std::max(rest, 0.0)));
  }
}

void HttpAttempts::give_up(const HttpFailure& failure, const std::string& where) const {
  const std::string text = fmt::format(
      "{}: {}{}{}.\n  {}.",
      shown_,
      public_text(failure.reason),
      where,
      failures_ > 1 ? fmt::format(", after {} attempts", failures_) : "",
      failure.advice.empty()
          ? "Check the address and the network; DALLE2_NET_TIMEOUT is the longest stall "
            "in seconds"
          : failure.advice);
  if (failure.status != 0) throw HttpStatusError(failure.status, text, failure.retry_after);
  if (failure.is_final) throw NetworkError("{}", text);
  throw UnreachableError("{}", text);
}

HttpTransfer::HttpTransfer(const HttpCall& call, const HttpOptions& options, Take take)
    : call_(call),
      shown_(call.shown.empty() ? public_url(call.url) : call.shown),
      stall_seconds_(options.stall_seconds),
      is_once_(options.attempts == 1),
      take_(std::move(take)),
      connections_(borrow_connections()),
      method_(call.method),
      url_(call.url),
      first_url_(call.url) {
  std::tie(body_, body_size_) = open_body(call);
  begin();
}

HttpTransfer::~HttpTransfer() {
  if (easy_) curl_multi_remove_handle(connections_.get(), easy_.get());
}

void HttpTransfer::fail(HttpFailure failure) {
  failure_ = std::move(failure);
  failure_->is_cut = failure_->status == 0 && body_sent_ >= kRealProgress;
  has_ended_ = true;
}

/// Asks at the address of now.
void HttpTransfer::begin() {
  const std::string scheme = url_.scheme();
  if (!url_.is_valid()) return fail({"this is not an http(s) address", "", true});
  if (scheme != "https" && scheme != "http") {
    return fail({"http or https is expected, got " + scheme, "", true});
  }
  check_plain_http(url_.origin(), call_.plain_http, shown_);
  head_ = {};
  refusal_.clear();
  curl_text_[0] = '\0';
  forget_silence();
  easy_.reset(curl_easy_init());
  if (!easy_) throw ResourceError("out of memory for a transfer");
  set_up(easy_.get());
  set_headers(easy_.get(), url_.origin() == first_url_.origin());
  curl_multi_add_handle(connections_.get(), easy_.get());
}

void HttpTransfer::set_up(CURL* easy) {
  const auto set = [easy](CURLoption option, auto value) { curl_easy_setopt(easy, option, value); };
  set(CURLOPT_URL, url_.whole().c_str());
  set(CURLOPT_PATH_AS_IS, 1L);  // a key may hold ".."
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_USERAGENT, "dalle2-train");
  set(CURLOPT_NOSIGNAL, 1L);
  // The end of a transfer waits for no name server that hangs: a stop signal has seconds.
  set(CURLOPT_QUICK_EXIT, 1L);
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  // libcurl itself asks again where a connection of before was dead.
  set(CURLOPT_FRESH_CONNECT, is_once_ ? 1L : 0L);
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::ceil(stall_seconds_ * 1000)));
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  // A proxy could read what is meant for this machine, and does not reach it.
  if (url_.is_loopback()) set(CURLOPT_NOPROXY, "*");
  if (url_.scheme() == "https") set_authorities(easy, call_.sign != nullptr);
  set(CURLOPT_ERRORBUFFER, curl_text_);
  set(CURLOPT_HEADERDATA, this);
  set(
      CURLOPT_HEADERFUNCTION, +[](char* /*data*/, size_t, size_t size, void* self) {
        auto& transfer = *static_cast<HttpTransfer*>(self);
        transfer.moved(0);
        if (size <= 2) transfer.read_head();
        return size;
      });
  set(CURLOPT_WRITEDATA, this);
  set(
      CURLOPT_WRITEFUNCTION, +[](char* data, size_t, size_t size, void* self) {
        return static_cast<HttpTransfer*>(self)->take_body({data, size});
      });
  const bool sends = method_ == "POST" || method_ == "PUT" || method_ == "PATCH" ||
                     (method_ == call_.method && body_size_ > 0);
  if (sends) {
    rewind_body(0);
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(body_size_));
    set(CURLOPT_READDATA, this);
    set(
        CURLOPT_READFUNCTION, +[](char* buffer, size_t, size_t capacity, void* self) {
          return static_cast<HttpTransfer*>(self)->give_body(buffer, capacity);
        });
    set(CURLOPT_SEEKDATA, this);
    set(
        CURLOPT_SEEKFUNCTION, +[](void* self, curl_off_t to, int) {
          static_cast<HttpTransfer*>(self)->rewind_body(to);
          return CURL_SEEKFUNC_OK;
        });
  } else if (method_ == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  }
  set(CURLOPT_CUSTOMREQUEST, method_.c_str());
}

void HttpTransfer::set_headers(CURL* easy, bool keeps_login) {
  std::vector<std::string> lines = call_.headers;
  if (!call_.range.empty()) lines.push_back("Range: " + call_.range);
  if (call_.sign) {
    for (std::string& line : call_.sign()) lines.push_back(std::move(line));
  }
  // No wait for "100 Continue", which few services send.
  curl_slist* list = curl_slist_append(nullptr, "Expect:");
  for (const std::string& line : lines) {
    if (keeps_login || describes_content(line)) list = curl_slist_append(list, line.c_str());
  }
  headers_.reset(list);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
  std::string user = url_.user(), password = url_.password();
  if (keeps_login && user.empty() && password.empty()) {
    user = first_url_.user();
    password = first_url_.password();
  }
  // A signature is a login too, and stores refuse a second one.
  if (call_.netrc && keeps_login && password.empty() && !url_.is_signed()) {
    std::string host = url_.host();
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    if (const auto login = netrc_login(netrc_text(), host, user)) {
      user = login->user;
      password = login->password;
    }
  }
  if (user.empty() && password.empty()) return;
  curl_easy_setopt(easy, CURLOPT_USERNAME, user.c_str());
  curl_easy_setopt(easy, CURLOPT_PASSWORD, password.c_str());
}

bool HttpTransfer::advance() {
  if (has_ended_) return false;
  has_moved_ = false;
  int running = 0, left = 0;
  curl_multi_perform(connections_.get(), &running);
  if (const CURLMsg* message = curl_multi_info_read(connections_.get(), &left)) {
    finish(message->data.result);
    return !has_ended_;
  }
  if (has_moved_) return true;
  look_for_stall();
  if (has_ended_) return false;
  const auto before = Clock::now();
  const double longest = std::clamp(stall_seconds_ - seconds_since(last_byte_), 0.0, 0.25);
  curl_multi_poll(connections_.get(), nullptr, 0, static_cast<int>(longest * 1000) + 1, nullptr);
  window_seconds_ += seconds_since(before);
  return true;
}

/// The headers are all there.
void HttpTransfer::read_head() {
  long status = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status < 200) return;  // "100 Continue"
  head_ = {};
  head_.status = status;
  curl_header* line = nullptr;
  while ((line = curl_easy_nextheader(easy_.get(), CURLH_HEADER, -1, line)) != nullptr)
    head_.headers[lower_case(line->name)] = line->value;
  curl_off_t seconds = 0;
  curl_easy_getinfo(easy_.get(), CURLINFO_RETRY_AFTER, &seconds);
  const std::string limit = head_.header("ratelimit");  // "api";r=0;t=55
  const size_t reset = limit.find("t=", limit.find(';'));
  if (status == 429 && seconds == 0 && reset != std::string::npos)
    seconds = std::atoll(limit.c_str() + reset + 2);
  if (seconds > 0) head_.retry_after = std::min(static_cast<double>(seconds), 86'400.0);  // a day
  head_.content_length = number_of_digits(head_.header("content-length"));
  const std::string range = head_.header("content-range");
  if (!range.starts_with("bytes ")) return;
  head_.range_start = number_of_digits(range.substr(6, range.find('-') - 6));
  head_.range_total = number_of_digits(range.substr(range.find('/') + 1));
}

bool HttpTransfer::leads_on() const {
  const long status = head_.status;
  return (status == 301 || status == 302 || status == 303 || status == 307 || status == 308) &&
         !call_.sign && !head_.header("location").empty();
}

bool HttpTransfer::is_answer() const {
  const auto& known = call_.accepted;
  return head_.status / 100 == 2 || std::ranges::find(known, head_.status) != known.end();
}

void HttpTransfer::finish(CURLcode result) {
  const std::string told =
      result == CURLE_OK ? "the answer breaks off" : curl_reason(curl_text_, result);
  curl_multi_remove_handle(connections_.get(), easy_.get());
  easy_.reset();
  has_ended_ = true;
  if (!fault_.empty()) return fail({fault_, "", true});
  if (result == CURLE_ABORTED_BY_CALLBACK && call_.file) {
    throw DataError("{}: the file became shorter while it was sent", call_.file->path);
  }
  if (result == CURLE_OK && is_answer()) return;
  const double silent = seconds_since(last_byte_);
  if (head_.status == 0 || is_answer()) {
    const bool is_untrusted =
        result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE;
    return fail({.reason = told,
                 .advice = is_untrusted ? certificate_advice(call_.sign != nullptr) : "",
                 .is_final = is_untrusted || result == CURLE_URL_MALFORMAT ||
                             result == CURLE_UNSUPPORTED_PROTOCOL,
                 .lost_seconds = silent});
  }
  // Perhaps before the whole body was sent.
  if (leads_on()) return follow();
  const bool is_final = !is_worth_retrying(head_.status);
  const HttpAnswer answer{.head = head_, .body = refusal_, .shown = shown_};
  std::string reason = fmt::format("the server answers with status {}", head_.status);
  if (head_.retry_after && !is_final) {
    reason += fmt::format(" and asks to wait {:.0f} s", *head_.retry_after);
  }
  fail({.reason = reason,
        .advice = call_.explain ? call_.explain(answer) : status_advice(head_.status),
        .is_final = is_final,
        .lost_seconds = silent,
        .retry_after = head_.retry_after,
        .status = head_.status});
}

void HttpTransfer::follow() {
  if (++redirects_ > kMostRedirects) {
    return fail({fmt::format("more than {} redirects", kMostRedirects), "", true});
  }
  const bool was_secure = url_.scheme() == "https";
  if (!url_.go_to(head_.header("location"))) {
    return fail({"a redirect names no http(s) address", "", true});
  }
  if (was_secure && url_.scheme() != "https") {
    return fail(
        {"a redirect leads from https to plain http: " + public_url(url_.whole()), "", true});
  }
  // As every client does: 303 asks for the answer by GET, and 301 and 302 do so after a POST.
  const long status = head_.status;
  if (status == 303 || ((status == 301 || status == 302) && method_ == "POST")) method_ = "GET";
  has_ended_ = false;
  begin();
}

void note_progress() {
  last_progress = Clock::now();
}

double seconds_without_progress() {
  return seconds_since(last_progress);
}

void HttpTransfer::moved(size_t bytes) {
  note_progress();
  forget_silence();
  has_moved_ = true;
  window_bytes_ += static_cast<int64_t>(bytes);
}

void HttpTransfer::rewind_body(int64_t to) {
  body_sent_ = to;
  body_->clear();
  body_->seekg(to + (call_.file ? call_.file->offset : 0));
}

size_t HttpTransfer::give_body(char* buffer, size_t capacity) {
  const auto most = std::min(static_cast<int64_t>(capacity), body_size_ - body_sent_);
  if (!body_->read(buffer, most)) return CURL_READFUNC_ABORT;
  body_sent_ += most;
  moved(static_cast<size_t>(most));
  return static_cast<size_t>(most);
}

size_t HttpTransfer::take_body(std::string_view bytes) {
  moved(bytes.size());
  if (!is_answer()) {
    refusal_ += bytes.substr(0, kMostOfRefusal - refusal_.size());
    return refusal_.size() < kMostOfRefusal ? bytes.size() : 0;
  }
  fault_ = take_(head_, bytes);
  return fault_.empty() ? bytes.size() : 0;
}

/// Bytes that the kernel still has to send: they become fewer while an upload moves.
int64_t HttpTransfer::unsent() const {
  fd_set used;
  FD_ZERO(&used);
  int last = -1, bytes = 0;
  int64_t all = 0;
  curl_multi_fdset(connections_.get(), &used, &used, &used, &last);
  for (int socket = 0; socket <= last; ++socket)
    if (FD_ISSET(socket, &used) && ::ioctl(socket, SIOCOUTQ, &bytes) == 0) all += bytes;
  return all;
}

/// Fails if the transfer is silent, or next to it, for a stall time.
void HttpTransfer::look_for_stall() {
  const int64_t before = std::exchange(unsent_, unsent());
  if (unsent_ < before) moved(static_cast<size_t>(before - unsent_));
  const double silent = seconds_since(last_byte_);
  if (silent >= stall_seconds_) {
    return fail({.reason = fmt::format("no byte for {:g} seconds", stall_seconds_),
                 .lost_seconds = silent});
  }
  if (window_seconds_ < stall_seconds_ || call_.slow_answer) return;
  const double rate = static_cast<double>(window_bytes_) / window_seconds_;
  if (rate < kSlowest) {
    return fail(
        {.reason = fmt::format("only {} bytes in {:.3g} seconds", window_bytes_, window_seconds_),
         .lost_seconds = window_seconds_});
  }
  window_seconds_ = 0;
  window_bytes_ = 0;
}

HttpStream::HttpStream(HttpGet request, HttpOptions options, int64_t offset)
    : request_(std::move(request)),
      options_(std::move(options)),
      begin_(offset),
      attempts_(request_, options_),
      received_(offset),
      received_at_failure_(offset) {
  request_.plain_http = true;
}

size_t HttpStream::read(char* buffer, size_t capacity) {
  if (transfer_) transfer_->forget_silence();
  while (handed_out_ == body_.size() && !has_ended_) advance();
  const size_t size = std::min(capacity, body_.size() - handed_out_);
  std::memcpy(buffer, body_.data() + handed_out_, size);
  handed_out_ += size;
  if (handed_out_ == body_.size()) {
    body_.clear();
    handed_out_ = 0;
  }
  return size;
}

/// Some bytes, some waiting, or the end of an attempt.
void HttpStream::advance() {
  attempts_.check();
  if (!transfer_) {
    is_judged_ = false;
    // Without If-Range: the ETag of the answer is compared, so that a change is reported, not skipped.
    request_.range = received_ > 0 ? fmt::format("bytes={}-", received_) : "";
    if (received_ > 0) request_.accepted = {kBehindTheEnd};
    transfer_ = std::make_unique<HttpTransfer>(
        request_, options_, [this](const HttpResponse& head, auto bytes) {
          return take(head, bytes);
        });
  }
  if (transfer_->advance() || handed_out_ < body_.size()) return;  // what came is handed out first
  std::optional<HttpFailure> failure = transfer_->failure();
  if (!failure) failure = fault_of_end(transfer_->head());
  transfer_.reset();
  has_ended_ = !failure;
  if (has_ended_) return;
  if (received_ - received_at_failure_ >= kRealProgress) {
    attempts_.forget();
    received_at_failure_ = received_;
  }
  attempts_.after(*failure, received_ > begin_ ? fmt::format(" at byte {}", received_) : "");
}

/// Compares the headers with what is known of the file, once an attempt. @return what is wrong
std::string HttpStream::judge(const HttpResponse& head) {
  if (std::exchange(is_judged_, true)) return "";
  if (head.status != kWhole && head.status != kPart) {
    return fmt::format("the server answers with status {}", head.status);
  }
  const std::string tag = head.header("etag");
  if (!etag_) {
    etag_ = tag;
    total_ = head.total();
  } else if ((!etag_->empty() && !tag.empty() && *etag_ != tag) ||
             (total_ && head.total() && *total_ != *head.total())) {
    return "the file has changed";
  }
  if (head.status == kPart && head.range_start.value_or(-1) != received_) {
    return fmt::format("the server answers for another range than \"bytes={}-\"", received_);
  }
  to_skip_ = head.status == kWhole ? received_ : 0;
  return "";
}

std::string HttpStream::take(const HttpResponse& head, std::string_view bytes) {
  if (head.status == kBehindTheEnd) return "";
  if (std::string fault = judge(head); !fault.empty()) return fault;
  const size_t skipped = std::min(static_cast<size_t>(to_skip_), bytes.size());
  to_skip_ -= static_cast<int64_t>(skipped);
  body_ += bytes.substr(skipped);
  received_ += static_cast<int64_t>(bytes.size() - skipped);
  return "";
}

/// Whether the file has ended, too, with the answer.
std::optional<HttpFailure> HttpStream::fault_of_end(const HttpResponse& head) {
  const bool is_behind = head.status == kBehindTheEnd;
  if (is_behind && !total_) total_ = head.range_total;
  std::string fault = is_behind ? "" : judge(head);
  // Nothing stands after the last byte that was asked for or came; else the file is another.
  if (fault.empty() && (is_behind ? !total_ || *total_ != received_ : to_skip_ > 0)) {
    fault = received_ > begin_ ? "the file has become shorter"
                               : fmt::format("the file ends before byte {}", begin_);
  }
  if (!fault.empty()) return HttpFailure{.reason = fault, .is_final = true};
  if (!total_ || received_ >= *total_) return std::nullopt;
  return HttpFailure{.reason = fmt::format("{} of {} bytes came", received_, *total_)};
}

}  // namespace dalle2
