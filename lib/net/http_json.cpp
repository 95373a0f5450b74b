// SPDX-License-Identifier: MIT
#include "net/http_json.h"

#include <utility>

namespace dalle2 {

Json json_of(const HttpAnswer& answer) {
  ParsedJson parsed = parse_untrusted_json(answer.body);
  if (parsed.is_right()) return std::move(parsed.value);
  throw NetworkError(
      "{}: the answer (status {}, {} bytes) is not JSON: {}.\n  Check the address: another server "
      "or a proxy's login page may answer there.",
      answer.shown,
      answer.status(),
      answer.body.size(),
      parsed.fault);
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
