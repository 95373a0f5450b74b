// SPDX-License-Identifier: MIT
#include "net/s3/s3_request.h"

#include <algorithm>
#include <ctime>
#include <optional>

#include "net/s3/s3.h"
#include "net/url.h"

namespace dalle2 {

S3Place s3_place(const S3Url& url, const S3Access& access) {
  const bool own = !access.endpoint.empty();
  const bool in_path = own || url.bucket.find('.') != std::string::npos;
  const std::string suffix =
      access.region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com";
  const std::string base = own ? access.endpoint : "https://s3." + access.region + suffix;
  const size_t host = base.find("://") + 3;
  const size_t slash = std::min(base.find('/', host), base.size());
  S3Place place;
  place.request.host = base.substr(host, slash - host);
  const std::string usual = base.starts_with("https:") ? ":443" : ":80";
  if (place.request.host.ends_with(usual)) {
    place.request.host.resize(place.request.host.size() - usual.size());
  }
  if (!in_path) place.request.host = url.bucket + "." + place.request.host;
  place.origin = base.substr(0, host) + place.request.host;
  place.request.path = base.substr(slash);
  if (in_path) place.request.path += "/" + uri_encode(url.bucket);
  place.request.path += "/" + uri_encode(url.key, /*keep_slash=*/true);
  return place;
}

std::vector<std::string> s3_headers(const SignedRequest& request, const S3Access& access) {
  if (!access.is_anonymous()) {
    return sign_request(request,
                        {access.key_id, access.secret, access.session_token, access.region},
                        std::time(nullptr));
  }
  std::vector<std::string> lines;
  for (const auto& [name, value] : request.headers) lines.push_back(name + ": " + value);
  return lines;
}

namespace {

/// A store's words for a message: short, on one line, without anything that is ours to keep.
std::string tame(std::string text, const S3Access& access) {
  for (const std::string& secret : {access.secret, access.session_token}) {
    size_t at = 0;
    while (!secret.empty() && (at = text.find(secret)) != std::string::npos) {
      text.replace(at, secret.size(), "***");
    }
  }
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  }
  if (text.size() > 200) text = text.substr(0, 200) + "...";
  while (text.ends_with('.')) text.pop_back();
  return text;
}

std::string advice(const std::string& code, long status, const S3Access& access, bool writes) {
  const std::string keys =
      access.is_anonymous()
          ? "no keys were found (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile "
            "AWS_PROFILE of ~/.aws/credentials), so the request was anonymous"
          : "the keys are those of " + access.source;
  if (code == "NoSuchBucket") return "There is no such bucket: check the url and the endpoint";
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
  if (status >= 500 || status == 429)
    return "The store fails or asks for fewer requests: try again later";
  return "Check the url, AWS_REGION and the endpoint (AWS_ENDPOINT_URL_S3)";
}

}  // namespace

std::string explain_s3_refusal(const HttpResponse& response,
                               const std::string& body,
                               const S3Access& access,
                               bool writes) {
  const std::string code = tame(xml_element(body, "Code").value_or(""), access);
  const std::string message = tame(xml_element(body, "Message").value_or(""), access);
  std::string region = response.bucket_region;
  if (region.empty()) region = xml_element(body, "Region").value_or("");
  const std::string said = code.empty()      ? ""
                           : message.empty() ? code + ". "
                                             : code + ": " + message + ". ";
  if (!region.empty() && region != access.region) {
    return fmt::format("{}The bucket is in the region {}, {} was asked: set AWS_REGION={}",
                       said,
                       tame(region, access),
                       access.region,
                       tame(region, access));
  }
  const bool moved = response.status >= 300 && response.status < 400;
  if (moved) return said + "The bucket is in another region: set AWS_REGION to it";
  return said + advice(code, response.status, access, writes);
}

}  // namespace dalle2
