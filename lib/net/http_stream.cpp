// SPDX-License-Identifier: MIT
#include "net/http_stream.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace dalle2 {
namespace {

constexpr int64_t kRealProgress = 1 << 16;  ///< bytes after which earlier failures are forgotten
constexpr long kWhole = 200, kPart = 206, kBehindTheEnd = 416;

}  // namespace

struct HttpStream::State {
  State(HttpGet asked, HttpOptions given, int64_t offset)
      : request(std::move(asked)),
        options(std::move(given)),
        begin(offset),
        attempts(request, options),
        received(offset),
        received_at_failure(offset) {
    request.plain_http = true;
  }

  size_t read(char* buffer, size_t capacity);
  void advance();
  std::string judge(const HttpResponse& head);
  std::string take(const HttpResponse& head, std::string_view bytes);
  std::optional<HttpFailure> fault_of_end(const HttpResponse& head);

  HttpGet request;
  const HttpOptions options;
  const int64_t begin;
  HttpAttempts attempts;
  std::unique_ptr<HttpTransfer> transfer;  // during an attempt
  std::string body;                        // received, not handed out yet
  size_t handed_out = 0;                   // of body
  int64_t received;                        // position in the file after what came
  int64_t received_at_failure;             // when the attempts without progress began
  bool finished = false;
  bool known = false;  // a response has told the next two
  std::string etag;
  std::optional<int64_t> total;  // bytes of the file
  bool judged = false;           // the headers of this attempt
  int64_t to_skip = 0;           // bytes known already, of a server without ranges
};

size_t HttpStream::State::read(char* buffer, size_t capacity) {
  if (transfer) transfer->forget_silence();
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

/// Some bytes, some waiting, or the end of an attempt.
void HttpStream::State::advance() {
  attempts.check();
  if (!transfer) {
    judged = false;
    // Without If-Range: the ETag of the answer is compared, so that a change is reported, not skipped.
    request.range = received > 0 ? fmt::format("bytes={}-", received) : "";
    if (received > 0) request.accepted = {kBehindTheEnd};
    transfer = std::make_unique<HttpTransfer>(
        request, options, received, [this](const HttpResponse& head, auto bytes) {
          return take(head, bytes);
        });
  }
  if (transfer->advance() || handed_out < body.size()) return;  // what came is handed out first
  std::optional<HttpFailure> failure = transfer->failure();
  if (!failure) failure = fault_of_end(transfer->head());
  transfer.reset();
  finished = !failure;
  if (finished) return;
  if (received - received_at_failure >= kRealProgress) {
    attempts.forget();
    received_at_failure = received;
  }
  attempts.after(*failure, received > begin ? fmt::format(" at byte {}", received) : "");
}

/// Compares the headers with what is known of the file, once an attempt. @return what is wrong
std::string HttpStream::State::judge(const HttpResponse& head) {
  if (std::exchange(judged, true)) return "";
  if (head.status != kWhole && head.status != kPart) {
    return fmt::format("the server answers with status {}", head.status);
  }
  const std::string tag = head.header("etag");
  if (!std::exchange(known, true)) {
    etag = tag;
    total = head.total();
  } else if ((!etag.empty() && !tag.empty() && etag != tag) ||
             (total && head.total() && *total != *head.total())) {
    return "the file has changed";
  }
  if (head.status == kPart && head.range_start.value_or(-1) != received) {
    return fmt::format("the server answers for another range than \"bytes={}-\"", received);
  }
  to_skip = head.status == kWhole ? received : 0;
  return "";
}

std::string HttpStream::State::take(const HttpResponse& head, std::string_view bytes) {
  if (head.status == kBehindTheEnd) return "";
  if (std::string fault = judge(head); !fault.empty()) return fault;
  const size_t skipped = std::min(static_cast<size_t>(to_skip), bytes.size());
  to_skip -= static_cast<int64_t>(skipped);
  body += bytes.substr(skipped);
  received += static_cast<int64_t>(bytes.size() - skipped);
  return "";
}

/// Whether the file has ended, too, with the answer.
std::optional<HttpFailure> HttpStream::State::fault_of_end(const HttpResponse& head) {
  const bool is_behind = head.status == kBehindTheEnd;
  if (is_behind && !total) total = head.range_total;
  std::string fault = is_behind ? "" : judge(head);
  // Nothing stands after the last byte that was asked for or came; else the file is another.
  if (fault.empty() && (is_behind ? !total || *total != received : to_skip > 0)) {
    fault = received > begin ? "the file has become shorter"
                             : fmt::format("the file ends before byte {}", begin);
  }
  if (!fault.empty()) return HttpFailure{.reason = fault, .is_final = true};
  if (!total || received >= *total) return std::nullopt;
  return HttpFailure{.reason = fmt::format("{} of {} bytes came", received, *total)};
}

HttpStream::HttpStream(const std::string& url, HttpOptions options)
    : HttpStream(HttpGet{.url = url}, std::move(options)) {}

HttpStream::HttpStream(HttpGet request, HttpOptions options, int64_t offset)
    : state_(std::make_unique<State>(std::move(request), std::move(options), offset)) {}

HttpStream::~HttpStream() = default;

size_t HttpStream::read(char* buffer, size_t capacity) {
  return state_->read(buffer, capacity);
}

}  // namespace dalle2
