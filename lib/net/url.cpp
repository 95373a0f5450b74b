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

}  // namespace dalle2
