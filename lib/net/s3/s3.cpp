// SPDX-License-Identifier: MIT
#include "net/s3/s3.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "base/public_url.h"
#include "net/http_call.h"
#include "net/s3/s3_request.h"
#include "net/url.h"

namespace dalle2 {
namespace {

void check_names(const std::string& url, const std::vector<std::string>& names, size_t pages) {
  if (!names.empty() && names.back().size() > kMostNameBytes) {
    throw NetworkError(
        "{}: the listing has a name of {} bytes; at most {} are allowed: is this an S3 store?",
        url,
        names.back().size(),
        kMostNameBytes);
  }
  if (names.size() > kMostListedFiles || pages > kMostPages) {
    throw NetworkError(
        "{}: the listing continues after {} names on {} pages.\n  Give a folder with fewer files, "
        "or "
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
  return s3_call(parts, {}, /*writes=*/false);
}

std::vector<std::string> s3_list(const std::string& url, const HttpOptions& options) {
  const S3Url parts = parse_s3_url(url);
  const size_t slash = parts.key.rfind('/');
  const size_t folder = slash == std::string::npos ? 0 : slash + 1;
  std::vector<std::string> names;
  S3Query query = {
      {"delimiter", "/"}, {"encoding-type", "url"}, {"list-type", "2"}, {"prefix", parts.key}};
  for (size_t pages = 1;; ++pages) {
    HttpCall call = s3_call({parts.bucket, ""}, {.query = query}, /*writes=*/false);
    call.shown = url;
    call.most_bytes = kMostPageBytes;
    call.plain_http = true;
    const S3Page page = parse_s3_page(http_call(call, options).body);
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
