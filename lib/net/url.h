// SPDX-License-Identifier: MIT
// Addresses in their parts, texts as they stand in addresses and pages, and where logins come from.
#pragma once

#include <curl/curl.h>

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
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

/// @param what names the address, for the message @throws ConfigError plain http to another machine
void check_plain_http(const std::string& url, bool is_allowed, const std::string& what);

// The environment and files of other tools, from which logins come.

/// The variable's text; empty if it is not set.
std::string environment(const char* name);

/// The first text that is not empty; empty if all are.
std::string first_of(std::initializer_list<std::string> texts);

/// The address of a service as its user gives it, without a slash at its end. @throws ConfigError
/// @param source where `given` stands
/// @param secret what is sent there and how it is given: "the token as HF_TOKEN"
std::string service_address(const std::string& given,
                            const std::string& source,
                            const std::string& usual,
                            const std::string& secret,
                            bool plain_http = false);

/// Without blanks and line breaks at both ends.
std::string trimmed(const std::string& text);

using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Empty if there is no such file. Indented lines belong to the key before them: "s3.endpoint_url". The last
/// value of a key counts. Lines of # and ; are comments.
IniFile read_ini(const std::string& path);

/// A secret.
struct NetrcLogin {
  std::string user, password;
};

/// The login that a netrc file has for `host`, else the one of its `default`, with a password.
/// @param user if not empty: of this user
std::optional<NetrcLogin> netrc_login(const std::string& text,
                                      const std::string& host,
                                      const std::string& user = "");

/// Of the user's file, NETRC or else ~/.netrc; empty if it cannot be read.
std::string netrc_text();

}  // namespace dalle2
