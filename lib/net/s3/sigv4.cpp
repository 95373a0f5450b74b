// SPDX-License-Identifier: MIT
#include "net/s3/sigv4.h"

#include <fmt/format.h>

#include <algorithm>

#include "net/sha256.h"
#include "net/url.h"

namespace dalle2 {
namespace {

std::string utc(const char* format, std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), format, &parts)};
}

}  // namespace

std::string canonical_query(std::vector<std::pair<std::string, std::string>> query) {
  for (auto& [name, value] : query) {
    name = uri_encode(name);
    value = uri_encode(value);
  }
  std::sort(query.begin(), query.end());
  std::string text;
  for (const auto& [name, value] : query) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", name, value);
  }
  return text;
}

std::vector<std::string> sign_request(const SignedRequest& request,
                                      const SigningKey& key,
                                      std::time_t now) {
  const std::string date = utc("%Y%m%d", now), time = utc("%Y%m%dT%H%M%SZ", now);
  const std::string body = request.body_sha256.empty() ? to_hex(sha256("")) : request.body_sha256;
  std::map<std::string, std::string> headers = request.headers;
  headers["host"] = request.host;
  headers["x-amz-content-sha256"] = body;
  headers["x-amz-date"] = time;
  if (!key.session_token.empty()) headers["x-amz-security-token"] = key.session_token;

  std::string canonical_headers, names;
  std::vector<std::string> lines;
  for (const auto& [name, value] : headers) {  // a map: in the order that is asked for
    canonical_headers += name + ":" + value + "\n";
    names += (names.empty() ? "" : ";") + name;
    lines.push_back(name + ": " + value);
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}",
                                            request.method,
                                            request.path,
                                            canonical_query(request.query),
                                            canonical_headers,
                                            names,
                                            body);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", date, key.region);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope, to_hex(sha256(canonical)));
  std::string signing = "AWS4" + key.secret;
  for (const std::string& part :
       {date, key.region, std::string("s3"), std::string("aws4_request")}) {
    signing = hmac_sha256(signing, part);
  }
  lines.push_back(
      fmt::format("authorization: AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}",
                  key.key_id,
                  scope,
                  names,
                  to_hex(hmac_sha256(signing, to_sign))));
  return lines;
}

}  // namespace dalle2
