// SPDX-License-Identifier: MIT
// Logins of servers in ~/.netrc.
#pragma once

#include <optional>
#include <string>

namespace dalle2 {

/// A secret.
struct NetrcLogin {
  std::string user, password;
};

/// The login that a netrc file has for `host`, else the one of its `default`; none if neither has a
/// password. Words may be in quotes.
/// @param user if not empty: of this user
std::optional<NetrcLogin> netrc_login(const std::string& text,
                                      const std::string& host,
                                      const std::string& user = "");

/// The user's file: NETRC, else ~/.netrc.
struct NetrcFile {
  std::string path, text;  ///< the text is empty if the file cannot be read
};
NetrcFile read_netrc();

}  // namespace dalle2
