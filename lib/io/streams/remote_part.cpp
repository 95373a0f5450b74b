// SPDX-License-Identifier: MIT
#include "io/streams/remote_part.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "io/streams/url_source.h"
#include "net/http_call.h"

namespace dalle2 {

RemotePart fetch_part(const std::string& url, uint64_t from, uint64_t size) {
  constexpr long kPart = 206, kBehindTheEnd = 416;
  HttpCall call = remote_request(url).value_or(HttpCall{.url = url});
  call.range = fmt::format("bytes={}-{}", from, from + size - 1);
  call.accepted = {kBehindTheEnd};
  call.plain_http = true;
  call.most_bytes = std::max(size, kMostWholeFile);
  HttpAnswer answer = http_call(call);
  std::string state = answer.header("etag");
  if (state.empty()) state = answer.header("last-modified");
  if (answer.status() == kBehindTheEnd) {
    return {"", static_cast<uint64_t>(answer.head.range_total.value_or(0)), std::move(state)};
  }
  if (answer.status() != kPart) {  // the whole file
    const uint64_t whole = answer.body.size();
    static std::atomic<bool> told = false;
    if (whole > size && !told.exchange(true)) {
      log_warning(
          "data",
          "{}: the server sends the whole file where a part is asked for: reading costs many "
          "times the transfer\n  Download the folder, or serve it with byte ranges.",
          public_url(url));
    }
    return {from < whole ? answer.body.substr(from, size) : "", whole, std::move(state)};
  }
  const auto start = answer.head.range_start;
  const auto total = answer.head.range_total;
  if (!start || static_cast<uint64_t>(*start) != from || !total || answer.body.size() > size) {
    throw NetworkError("{}: the server sent another part than bytes {} to {} of the file",
                       public_url(url),
                       from,
                       from + size - 1);
  }
  const auto whole = static_cast<uint64_t>(*total);
  if (answer.body.size() < std::min<uint64_t>(size, whole - std::min(from, whole))) {
    throw NetworkError("{}: the server sent {} of the {} bytes from byte {} on that were asked for",
                       public_url(url),
                       answer.body.size(),
                       size,
                       from);
  }
  return {std::move(answer.body), whole, std::move(state)};
}

}  // namespace dalle2
