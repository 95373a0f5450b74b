// SPDX-License-Identifier: MIT
#include "net/s3/s3_request.h"

#include <fmt/format.h>
#include <algorithm>
#include <ctime>
#include <optional>

#include "net/digest.h"
#include "net/s3/s3.h"
#include "net/service_words.h"
#include "net/url.h"

namespace dalle2 {

namespace {

/// Sets host and path. @return what is in the url before the path: "https://host:port"
std::string set_place(const S3Url& url, const S3Access& access, SignedRequest& request) {
  const bool own = !access.endpoint.empty();
  const bool in_path = own || url.bucket.find('.') != std::string::npos;
  const std::string suffix =
      access.region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com";
  const std::string base = own ? access.endpoint : "https://s3." + access.region + suffix;
  const size_t host = base.find("://") + 3;
  const size_t slash = std::min(base.find('/', host), base.size());
  request.host = base.substr(host, slash - host);
  const std::string usual = base.starts_with("https:") ? ":443" : ":80";
  if (request.host.ends_with(usual)) request.host.resize(request.host.size() - usual.size());
  if (!in_path) request.host = url.bucket + "." + request.host;
  request.path = base.substr(slash);
  if (in_path) request.path += "/" + uri_encode(url.bucket);
  request.path += "/" + uri_encode(url.key, /*keep_slash=*/true);
  return base.substr(0, host) + request.host;
}

/// The query as it is signed and has to be sent: encoded, sorted.
std::string canonical_query(S3Query query) {
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

std::string utc(const char* format, std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), format, &parts)};
}

std::string advice(const std::string& code, long status, const S3Access& access, bool writes) {
  const std::string keys =
      access.is_anonymous()
          ? "no keys were found (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile "
            "AWS_PROFILE of ~/.aws/credentials), so the request was anonymous"
          : "the keys are those of " + access.source;
  if (code == "NoSuchBucket") return "There is no such bucket: check the url and the endpoint";
  if (code == "NoSuchUpload") return "The store has no such upload any more: begin it again";
  if (status == 404) return "There is no such object: check the url and its number";
  if (code == "ExpiredToken" || code == "TokenRefreshRequired") {
    return "The session token has expired: get new keys; " + keys;
  }
  if (code == "InvalidAccessKeyId" || code == "InvalidToken") {
    return "The store does not know these keys: " + keys;
  }
  if (code == "SignatureDoesNotMatch") {
    return "The secret key does not belong to the access key id, or a proxy changes the request: " +
           keys;
  }
  if (code == "RequestTimeTooSkewed") return "The clock of this machine is wrong: set it";
  if ((status == 401 || status == 403) && writes) {
    return "Give keys that may write there (s3:PutObject); " + keys;
  }
  if (status == 401 || status == 403) {
    return "Give keys that may read it (s3:GetObject, s3:ListBucket); without the right to list, "
           "an absent object looks the same; " +
           keys;
  }
  if (status >= 500 || status == 429 || status == 413) return status_advice(status);
  return "Check the url, AWS_REGION and the endpoint (AWS_ENDPOINT_URL_S3)";
}

std::string explain_s3_refusal(const HttpAnswer& answer, const S3Access& access, bool writes) {
  const auto words = [&](const std::string& text) {
    return service_words(text, {access.secret, access.session_token});
  };
  const std::string code = words(xml_element(answer.body, "Code").value_or(""));
  const std::string message = words(xml_element(answer.body, "Message").value_or(""));
  std::string region = answer.header("x-amz-bucket-region");
  if (region.empty()) region = xml_element(answer.body, "Region").value_or("");
  region = words(region);
  const std::string said = code.empty()      ? ""
                           : message.empty() ? code + ". "
                                             : code + ": " + message + ". ";
  if (!region.empty() && region != access.region) {
    return fmt::format("{}The bucket is in the region {}, {} was asked: set AWS_REGION={}",
                       said,
                       region,
                       access.region,
                       region);
  }
  const bool moved = answer.status() >= 300 && answer.status() < 400;
  if (moved) return said + "The bucket is in another region: set AWS_REGION to it";
  return said + advice(code, answer.status(), access, writes);
}

}  // namespace

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

HttpCall s3_call(const S3Url& url, SignedRequest what, bool writes) {
  HttpCall call{.method = what.method};
  call.url = set_place(url, find_s3_access(), what) + what.path;
  if (!what.query.empty()) call.url += "?" + canonical_query(what.query);
  call.shown = fmt::format("s3://{}/{}", url.bucket, url.key);
  call.follows = false;  // the signature would not hold there
  call.is_s3 = true;
  call.sign = [url, what](const std::string& range) {
    const S3Access access = find_s3_access();
    SignedRequest request = what;
    set_place(url, access, request);
    if (!range.empty()) request.headers["range"] = range;
    if (!access.is_anonymous()) {
      return sign_request(request,
                          {access.key_id, access.secret, access.session_token, access.region},
                          std::time(nullptr));
    }
    std::vector<std::string> lines;
    for (const auto& [name, value] : request.headers) lines.push_back(name + ": " + value);
    return lines;
  };
  call.explain = [writes](const HttpAnswer& answer) {
    return explain_s3_refusal(answer, find_s3_access(), writes);
  };
  return call;
}

}  // namespace dalle2
