// SPDX-License-Identifier: MIT
#include "net/http_response.h"

#include <curl/curl.h>

#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/text.h"

namespace dalle2 {
namespace {

std::optional<int64_t> to_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || end == text.data()) return std::nullopt;
  return number;
}

}  // namespace

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

}  // namespace dalle2
