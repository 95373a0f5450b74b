// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/parsed_url.h"
#include "net/service_words.h"

namespace dalle2 {

HttpAnswer http_call(const HttpCall& call, const HttpCallOptions& options) {
  HttpAttempts attempts(call, options);
  for (;;) {
    HttpAnswer answer;
    answer.shown = attempts.shown();
    const auto take = [&](const HttpResponse&, std::string_view bytes) -> std::string {
      if (answer.body.size() + bytes.size() > call.most_bytes) {
        return fmt::format("the answer has more than {} bytes", call.most_bytes);
      }
      answer.body += bytes;
      return "";
    };
    std::optional<HttpFailure> failure;
    {
      HttpTransfer transfer(call, options, 0, take);
      do attempts.check();
      while (transfer.advance());
      failure = transfer.failure();
      answer.head = transfer.head();
    }
    if (!failure) return answer;
    attempts.after(*failure);
  }
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
