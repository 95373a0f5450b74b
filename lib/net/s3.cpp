// SPDX-License-Identifier: MIT
#include "net/s3.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>

#include "base/public_url.h"
#include "base/text.h"
#include "net/sigv4.h"
#include "net/url.h"

namespace dalle2 {
namespace {

using Query = std::vector<std::pair<std::string, std::string>>;

/// Where a bucket is: what stands in the url before the query.
struct Place {
  std::string origin;  // "https://host:port"
  SignedRequest request;
};

Place place_of(const S3Url& url, const S3Access& access) {
  const bool own = !access.endpoint.empty();
  const bool in_path = own || url.bucket.find('.') != std::string::npos;
  const std::string suffix =
      access.region.starts_with("cn-") ? ".amazonaws.com.cn" : ".amazonaws.com";
  const std::string base = own ? access.endpoint : "https://s3." + access.region + suffix;
  const size_t host = base.find("://") + 3;
  const size_t slash = std::min(base.find('/', host), base.size());
  Place place;
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

std::string advice(const std::string& code, long status, const S3Access& access) {
  const std::string keys =
      access.is_anonymous() ? "no keys were found (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                              "the profile AWS_PROFILE of ~/.aws/credentials), so it was asked for "
                              "anonymously"
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
  if (status == 401 || status == 403) {
    return "Give keys that may read it (s3:GetObject, s3:ListBucket); without the right to list, "
           "an absent object looks the same; " +
           keys;
  }
  if (status >= 500 || status == 429)
    return "The store fails or asks for fewer requests: try again later";
  return "Check the url, AWS_REGION and the endpoint (AWS_ENDPOINT_URL_S3)";
}

std::string explain(const HttpResponse& response, const std::string& body, const S3Access& access) {
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
  return said + advice(code, response.status, access);
}

HttpGet signed_request(const S3Url& url, const Query& query, const std::string& shown) {
  const Place place = place_of(url, find_s3_access());
  HttpGet request;
  request.url = place.origin + place.request.path;
  if (!query.empty()) request.url += "?" + canonical_query(query);
  request.shown = shown;
  request.follow_redirects = false;  // the signature would not hold there
  request.headers = [url, query](const std::string& range) {
    const S3Access access = find_s3_access();
    SignedRequest parts = place_of(url, access).request;
    parts.query = query;
    if (!range.empty()) parts.headers["range"] = range;
    if (!access.is_anonymous()) {
      return sign_get(parts,
                      {access.key_id, access.secret, access.session_token, access.region},
                      std::time(nullptr));
    }
    std::vector<std::string> lines;
    for (const auto& [name, value] : parts.headers) lines.push_back(name + ": " + value);
    return lines;
  };
  request.explain = [](const HttpResponse& response, const std::string& body) {
    return explain(response, body, find_s3_access());
  };
  return request;
}

std::string read_page(const std::string& url, HttpGet request, const HttpOptions& options) {
  HttpStream stream(std::move(request), options);
  std::string text, buffer(1 << 16, '\0');
  while (const size_t size = stream.read(buffer.data(), buffer.size())) {
    text.append(buffer, 0, size);
    if (text.size() > kMostPageBytes) {
      throw NetworkError(
          "{}: a page of the listing has more than {}", url, human_bytes(kMostPageBytes));
    }
  }
  return text;
}

void check_names(const std::string& url, const std::vector<std::string>& names, size_t pages) {
  if (!names.empty() && names.back().size() > kMostNameBytes) {
    throw NetworkError(
        "{}: the listing has a name of {} bytes; at most {} are taken: is this a store of S3?",
        url,
        names.back().size(),
        kMostNameBytes);
  }
  if (names.size() > kMostListedFiles || pages > kMostPages) {
    throw NetworkError(
        "{}: the listing goes on after {} names on {} pages.\n  Give a folder with fewer files, or "
        "one file's url with {{}} for the shard number.",
        url,
        names.size(),
        pages);
  }
}

}  // namespace

S3Url parse_s3_url(const std::string& url) {
  constexpr std::string_view kScheme = "s3://";
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  S3Url parts{url.substr(kScheme.size(), slash - kScheme.size()), ""};
  if (slash < url.size()) parts.key = url.substr(slash + 1);
  if (!url.starts_with(kScheme) || parts.bucket.empty()) {
    throw ConfigError("{}: expected s3://BUCKET/KEY", public_url(url));
  }
  return parts;
}

HttpGet s3_request(const std::string& url) {
  const S3Url parts = parse_s3_url(url);
  if (parts.key.empty()) {
    throw ConfigError("{}: expected s3://BUCKET/KEY, the key is absent", public_url(url));
  }
  return signed_request(parts, {}, url);
}

std::vector<std::string> s3_list(const std::string& url, const HttpOptions& options) {
  const S3Url parts = parse_s3_url(url);
  const size_t slash = parts.key.rfind('/');
  const size_t folder = slash == std::string::npos ? 0 : slash + 1;
  std::vector<std::string> names;
  Query query = {
      {"delimiter", "/"}, {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", parts.key}};
  for (size_t pages = 1;; ++pages) {
    const S3Page page =
        parse_s3_page(read_page(url, signed_request({parts.bucket, ""}, query, url), options));
    for (const std::string& key : page.keys) {
      if (key.size() > folder) names.push_back(key.substr(folder));
      check_names(url, names, pages);
    }
    check_names(url, names, pages);
    if (page.is_last) return names;
    const bool later = query.size() > 4;
    if (page.next_token.empty() || (later && query.back().second == page.next_token)) {
      throw NetworkError(
          "{}: the listing breaks off after {} names: the store does not say where "
          "its next page is",
          url,
          names.size());
    }
    if (later) query.pop_back();
    query.emplace_back("continuation-token", page.next_token);
  }
}

std::optional<std::string> xml_element(std::string_view xml, const std::string& name) {
  const std::string open = "<" + name + ">", close = "</" + name + ">";
  const size_t begin = xml.find(open);
  const size_t end = begin == std::string_view::npos ? begin : xml.find(close, begin);
  if (end == std::string_view::npos) return std::nullopt;
  return without_entities(xml.substr(begin + open.size(), end - begin - open.size()));
}

S3Page parse_s3_page(std::string_view xml) {
  constexpr std::string_view kBegin = "<Contents>", kEnd = "</Contents>";
  S3Page page;
  const bool encoded =
      xml_element(xml, "EncodingType").value_or("") == "url";  // some stores do not
  for (size_t at = 0; (at = xml.find(kBegin, at)) != std::string_view::npos;) {
    const size_t end = xml.find(kEnd, at);
    if (end == std::string_view::npos) break;
    std::string key = xml_element(xml.substr(at, end - at), "Key").value_or("");
    if (encoded) {  // as in forms
      std::replace(key.begin(), key.end(), '+', ' ');
      key = uri_decode(key);
    }
    if (!key.empty()) page.keys.push_back(std::move(key));
    at = end;
  }
  page.is_last = xml_element(xml, "IsTruncated").value_or("false") != "true";
  page.next_token = xml_element(xml, "NextContinuationToken").value_or("");
  return page;
}

}  // namespace dalle2
