// SPDX-License-Identifier: MIT
// The environment and files of other tools, from which logins come: ini files ([section] and "key = value")
// and ~/.netrc.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>

namespace dalle2 {

/// The variable's text; empty if it is not set.
std::string environment(const char* name);

/// The first text that is not empty; empty if all are.
std::string first_of(std::initializer_list<std::string> texts);

/// The address of a service as its user gives it, without a slash at its end.
/// @param source where `given` stands
/// @param secret what is sent there and how it is given: "the token as HF_TOKEN"
/// @throws ConfigError no http(s) address, one with a login or a query, plain http to another machine
/// without leave
std::string service_address(const std::string& given,
                            const std::string& source,
                            const std::string& usual,
                            const std::string& secret,
                            bool plain_http = false);

/// Without blanks and line breaks at both ends.
std::string trimmed(const std::string& text);

/// Texts by section and key.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;

/// Empty if there is no such file. Indented lines belong to the key before them: "s3.endpoint_url". If a key
/// occurs twice, the last value counts. Lines of # and ; are comments.
IniFile read_ini(const std::string& path);

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
