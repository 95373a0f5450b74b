// SPDX-License-Identifier: MIT
#include "net/url.h"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"

namespace dalle2 {
namespace {

/// A text that libcurl made, and its size if it may hold zeros.
std::string taken(char* text, int size = -1) {
  const std::unique_ptr<char, void (*)(void*)> owned(text, &curl_free);
  if (text == nullptr) return "";
  return size < 0 ? text : std::string(text, static_cast<size_t>(size));
}

}  // namespace

std::string uri_encode(std::string_view text, bool keep_slash) {
  if (text.empty()) return "";  // libcurl takes a size of 0 for one that it has to find
  std::string encoded =
      taken(curl_easy_escape(nullptr, text.data(), static_cast<int>(text.size())));
  for (size_t at = 0; keep_slash && (at = encoded.find("%2F", at)) != std::string::npos;) {
    encoded.replace(at, 3, "/");
  }
  return encoded;
}

std::string uri_decode(const std::string& text) {
  int size = 0;
  char* const bytes =
      curl_easy_unescape(nullptr, text.data(), static_cast<int>(text.size()), &size);
  return taken(bytes, size);
}

std::string without_entities(std::string_view text) {
  constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&amp;", '&'}};
  std::string plain;
  while (!text.empty()) {
    const auto* const entity =
        std::find_if(std::begin(kEntities), std::end(kEntities), [&](const auto& known) {
          return text.starts_with(known.first);
        });
    const bool found = entity != std::end(kEntities);
    plain += found ? entity->second : text[0];
    text.remove_prefix(found ? entity->first.size() : 1);
  }
  return plain;
}

bool ParsedUrl::is_signed() const {
  std::istringstream query(lower_case(part(CURLUPART_QUERY)));
  for (std::string entry; std::getline(query, entry, '&');) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name == "sig" || name.ends_with("signature")) return true;
  }
  return false;
}

bool ParsedUrl::is_loopback() const {
  const std::string name = host();
  const bool is_number = name.find_first_not_of("0123456789.") == std::string::npos;
  return name == "localhost" || name == "[::1]" || (is_number && name.starts_with("127."));
}

std::string ParsedUrl::part(CURLUPart which, unsigned flags) const {
  char* text = nullptr;
  return curl_url_get(handle_.get(), which, &text, flags) == CURLUE_OK ? taken(text) : "";
}

void check_plain_http(const std::string& url, bool is_allowed, const std::string& what) {
  if (is_allowed || !url.starts_with("http://") || is_loopback_url(url)) return;
  throw ConfigError(
      "{}: plain http to another machine ({}) is refused, because others could read and change what is "
      "sent.\n  Give an https address, or set allow_plain_http where the config has that key.",
      what,
      public_url(url));
}

}  // namespace dalle2
