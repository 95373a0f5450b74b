// SPDX-License-Identifier: MIT
// Addresses in their parts, and texts as they stand in addresses and pages.
#pragma once

#include <curl/curl.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/text.h"

namespace dalle2 {

/// `text` with every byte but A-Z a-z 0-9 - . _ ~ as %XX; with `keep_slash` slashes stay too.
std::string uri_encode(std::string_view text, bool keep_slash = false);

/// %XX as the bytes they stand for; others are kept.
std::string uri_decode(const std::string& text);

/// The five entities that XML knows, and HTML too, as the characters they stand for.
std::string without_entities(std::string_view text);

/// An http(s) address.
class ParsedUrl {
 public:
  explicit ParsedUrl(const std::string& url)
      : handle_(curl_url(), &curl_url_cleanup), valid_(go_to(url)) {}
  /// Goes to the place that `location` names, seen from here. @return false if it is not an address
  bool go_to(const std::string& location) {
    return curl_url_set(handle_.get(), CURLUPART_URL, location.c_str(), CURLU_PATH_AS_IS) ==
           CURLUE_OK;
  }
  bool is_valid() const { return valid_; }
  std::string whole() const { return part(CURLUPART_URL); }
  std::string scheme() const { return lower_case(part(CURLUPART_SCHEME)); }
  std::string host() const { return lower_case(part(CURLUPART_HOST)); }
  /// A secret, as is the next; empty if the address has none.
  std::string user() const { return part(CURLUPART_USER, CURLU_URLDECODE); }
  std::string password() const { return part(CURLUPART_PASSWORD, CURLU_URLDECODE); }
  /// Scheme, host and port: what a login is meant for.
  std::string origin() const {
    return scheme() + "://" + host() + ":" + part(CURLUPART_PORT, CURLU_DEFAULT_PORT);
  }
  /// Whether the query holds a signature: X-Amz-Signature, X-Goog-Signature, Signature, sig.
  bool is_signed() const;
  /// Whether it is on this machine: localhost, 127.x.x.x or [::1].
  bool is_loopback() const;

 private:
  std::string part(CURLUPart which, unsigned flags = 0) const;

  std::unique_ptr<CURLU, void (*)(CURLU*)> handle_;
  bool valid_;
};

inline bool is_loopback_url(const std::string& url) {
  return ParsedUrl(url).is_loopback();
}

}  // namespace dalle2
