// SPDX-License-Identifier: MIT
#include "net/url.h"

namespace dalle2 {

std::string public_url(const std::string& url) {
  const size_t scheme = url.find("://");
  if (scheme == std::string::npos) return url;
  std::string shown = url.substr(0, url.find_first_of("?#"));
  const size_t host = scheme + 3;
  const size_t end = shown.find('/', host);
  const size_t at = shown.substr(0, end).rfind('@');
  if (at != std::string::npos && at >= host) shown.erase(host, at + 1 - host);
  return shown;
}

std::string uri_decode(const std::string& text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    if (coded) {
      decoded += static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace dalle2
