// SPDX-License-Identifier: MIT
#include "net/http_call.h"

#include <algorithm>
#include <utility>

#include "base/public_url.h"
#include "base/untrusted_text.h"
#include "net/digest.h"

namespace dalle2 {

std::optional<HttpFailure> http_attempt(const HttpCall& call,
                                        const HttpOptions& options,
                                        const HttpAttempts& attempts,
                                        HttpAnswer& answer) {
  answer.body.clear();
  answer.shown = attempts.shown();
  HttpTransfer transfer(call, options, [&](const HttpResponse&, auto bytes) -> std::string {
    answer.body += bytes;
    if (answer.body.size() <= call.most_bytes) return "";
    return fmt::format("the answer has more than {} bytes", call.most_bytes);
  });
  do attempts.check();
  while (transfer.advance());
  answer.head = transfer.head();
  return transfer.failure();
}

HttpAnswer http_call(const HttpCall& call, const HttpOptions& options) {
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

std::string service_words(std::string text, const std::vector<std::string>& secrets) {
  constexpr size_t kMostBytes = 200, kMostSearched = size_t{1} << 20;
  text.resize(std::min(text.size(), kMostSearched));
  for (const std::string& secret : secrets) {
    if (!secret.empty()) text = replaced(std::move(text), secret, "***");
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  }
  while (text.ends_with('.')) text.pop_back();
  if (text.size() <= kMostBytes) return text;
  size_t end = kMostBytes;  // not within a character of UTF-8
  while (end > 0 && !begins_character(text[end])) --end;
  return text.substr(0, end) + " [...]";
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

Json http_json(HttpCall call, const Json& content, const HttpOptions& options) {
  call.headers.emplace_back("Accept: application/json");
  if (!content.is_null()) {
    call.headers.emplace_back("Content-Type: application/json");
    // Captions may hold bytes that are not UTF-8.
    call.body = json_line(content);
  }
  return json_of(http_call(call, options));
}

}  // namespace dalle2
