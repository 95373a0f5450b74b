// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <utility>

#include "base/log.h"
#include "base/public_url.h"
#include "base/stop_signal.h"
#include "base/text.h"
#include "net/digest.h"
#include "net/parsed_url.h"
#include "net/service_words.h"

namespace dalle2 {

std::optional<HttpFailure> http_attempt(const HttpCall& call,
                                        const HttpCallOptions& options,
                                        const HttpAttempts& attempts,
                                        HttpAnswer& answer) {
  answer.body.clear();
  answer.shown = attempts.shown();
  HttpTransfer transfer(call, options, 0, [&](const HttpResponse&, auto bytes) -> std::string {
    answer.body += bytes;
    if (answer.body.size() <= call.most_bytes) return "";
    return fmt::format("the answer has more than {} bytes", call.most_bytes);
  });
  do attempts.check();
  while (transfer.advance());
  answer.head = transfer.head();
  return transfer.failure();
}

HttpAnswer http_call(const HttpCall& call, const HttpCallOptions& options) {
  HttpAnswer answer;
  for (HttpAttempts attempts(call, options);;) {
    const std::optional<HttpFailure> failure = http_attempt(call, options, attempts, answer);
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

Json json_at(const Json& answer, const std::vector<std::string>& path) {
  const Json* value = &answer;
  for (const std::string& key : path) {
    if (!value->is_object() || !value->contains(key)) return nullptr;
    value = &(*value)[key];
  }
  return Json(*value);
}

std::string text_at(const Json& answer,
                    const std::vector<std::string>& path,
                    const std::string& otherwise) {
  const Json value = json_at(answer, path);
  return value.is_string() ? value.get<std::string>() : otherwise;
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
