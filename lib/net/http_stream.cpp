// SPDX-License-Identifier: MIT
#include "net/http_transfer.h"

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
