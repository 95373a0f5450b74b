// SPDX-License-Identifier: MIT
#include "net/hub/hub_access.h"

#include <sys/stat.h>

#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "base/public_url.h"
#include "net/environment.h"
#include "net/http_call.h"

namespace dalle2 {
namespace {

/// What goes into a header: letters, digits and signs, on one line.
void check_token(const HubAccess& access) {
  for (const char c : access.token) {
    if (c > ' ' && c < 127) continue;
    throw ConfigError(
        "{}: holds no token: one word is expected, of letters, digits and signs.\n"
        "  Make one at {}/settings/tokens.",
        access.source,
        access.endpoint);
  }
}

/// @return false if there is no such file
bool read_token(const std::string& path, HubAccess& access) {
  std::ifstream file(path);
  if (!file) return false;
  std::string text;
  text.resize(1 << 12);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  access.token = trimmed(text);
  access.source = path;
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    log_warning("net", "{}: others may read this token: chmod 600 {}", path, path);
  }
  return true;
}

std::string login_file() {
  if (const std::string path = environment("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/token";
  const std::string cache = environment("XDG_CACHE_HOME");
  return (cache.empty() ? environment("HOME") + "/.cache" : cache) + "/huggingface/token";
}

std::string find_endpoint(bool plain_http) {
  std::string endpoint = trimmed(environment("HF_ENDPOINT"));
  if (endpoint.empty()) return "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool is_plain = endpoint.starts_with("http://");
  if (!is_plain && !endpoint.starts_with("https://")) {
    throw ConfigError("HF_ENDPOINT is \"{}\": expected an address that begins with https://",
                      public_url(endpoint));
  }
  if (public_url(endpoint) != endpoint) {
    throw ConfigError(
        "HF_ENDPOINT is \"{}\" with a login or a query, which would be shown wherever the address "
        "is shown.\n  Give the address alone, and the token as HF_TOKEN.",
        public_url(endpoint));
  }
  if (is_plain && !plain_http && !is_loopback_url(endpoint)) {
    throw ConfigError(
        "HF_ENDPOINT is \"{}\": plain http to another machine is refused, because others could "
        "read the token.\n  Give an https address, or set allow_plain_http in the section of the "
        "config that uses the hub.",
        public_url(endpoint));
  }
  return endpoint;
}

}  // namespace

HubAccess find_hub_access(const std::optional<std::string>& token_path, bool plain_http) {
  HubAccess access;
  access.endpoint = find_endpoint(plain_http);
  access.plain_http = plain_http;
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    access.token = trimmed(environment(name));
    access.source = name;
    if (!access.token.empty()) return check_token(access), access;
  }
  access.source.clear();
  if (token_path) {
    if (!read_token(*token_path, access) || access.token.empty()) {
      throw ConfigError(
          "token_path: '{}' {}\n  Write an access token into it (chmod 600), or give HF_TOKEN.",
          *token_path,
          access.source.empty() ? "cannot be read" : "is empty");
    }
  } else {
    read_token(login_file(), access);
  }
  check_token(access);
  return access;
}

}  // namespace dalle2
