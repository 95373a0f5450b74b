// SPDX-License-Identifier: MIT
#include "net/s3_page.h"

#include <algorithm>

#include "net/url.h"

namespace dalle2 {

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
