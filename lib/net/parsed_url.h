// SPDX-License-Identifier: MIT
// An http(s) address in its parts.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <sstream>
#include <string>

#include "base/text.h"

namespace dalle2 {

class ParsedUrl {
 public:
  explicit ParsedUrl(const std::string& url) : handle_(curl_url(), &curl_url_cleanup) {
    valid_ = set(url);
  }
  /// Goes to the place that `location` names, seen from here. @return false if it is not an address
  bool go_to(const std::string& location) { return set(location); }
  bool is_valid() const { return valid_; }
  std::string whole() const { return part(CURLUPART_URL, 0); }
  std::string scheme() const { return lower_case(part(CURLUPART_SCHEME, 0)); }
  std::string host() const { return lower_case(part(CURLUPART_HOST, 0)); }
  /// A secret, as is the next; empty if the address has none.
  std::string user() const { return part(CURLUPART_USER, CURLU_URLDECODE); }
  std::string password() const { return part(CURLUPART_PASSWORD, CURLU_URLDECODE); }
  /// Scheme, host and port: what a login is meant for.
  std::string origin() const {
    return scheme() + "://" + host() + ":" + part(CURLUPART_PORT, CURLU_DEFAULT_PORT);
  }
  /// Whether the query holds a signature: X-Amz-Signature, X-Goog-Signature, Signature, sig.
  bool is_signed() const {
    std::istringstream query(lower_case(part(CURLUPART_QUERY, 0)));
    for (std::string entry; std::getline(query, entry, '&');) {
      const std::string name = entry.substr(0, entry.find('='));
      if (name == "sig" || name.ends_with("signature")) return true;
    }
    return false;
  }
  bool is_loopback() const {
    const std::string name = host();
    const bool is_number = name.find_first_not_of("0123456789.") == std::string::npos;
    return name == "localhost" || name == "[::1]" || (is_number && name.starts_with("127."));
  }

 private:
  bool set(const std::string& url) {
    return curl_url_set(handle_.get(), CURLUPART_URL, url.c_str(), CURLU_PATH_AS_IS) == CURLUE_OK;
  }
  std::string part(CURLUPart which, unsigned flags) const {
    char* text = nullptr;
    if (curl_url_get(handle_.get(), which, &text, flags) != CURLUE_OK) return "";
    const std::unique_ptr<char, void (*)(void*)> owned(text, &curl_free);
    return text;
  }

  std::unique_ptr<CURLU, void (*)(CURLU*)> handle_;
  bool valid_ = false;
};

}  // namespace dalle2
