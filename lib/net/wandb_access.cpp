// SPDX-License-Identifier: MIT
#include "net/wandb_access.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/http_call.h"

namespace dalle2 {
namespace {

constexpr const char* kService = "https://api.wandb.ai";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Of an http(s) address.
std::string host_of(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  const std::string authority = url.substr(begin, url.find('/', begin) - begin);
  return authority.substr(0, authority.rfind(':'));
}

std::string find_base_url() {
  std::string url = environment("WANDB_BASE_URL");
  if (url.empty()) url = kService;
  while (url.ends_with('/')) url.pop_back();
  const bool is_plain = url.starts_with("http://");
  if (!is_plain && !url.starts_with("https://")) {
    throw ConfigError("WANDB_BASE_URL is \"{}\": expected an address such as {}", url, kService);
  }
  if (is_plain && !is_loopback_url(url)) {
    throw ConfigError(
        "WANDB_BASE_URL is \"{}\": plain http to another machine would show the API key to whoever is "
        "between\n  Give an https address.",
        public_url(url));
  }
  return url;
}

std::string find_key(const std::string& base_url) {
  std::string key = environment("WANDB_API_KEY");
  std::string source = "WANDB_API_KEY";
  if (key.empty()) {
    source = environment("NETRC");
    if (source.empty()) source = environment("HOME") + "/.netrc";
    std::ifstream file(source);
    std::stringstream text;
    text << file.rdbuf();
    key = netrc_password(text.str(), host_of(base_url)).value_or("");
  }
  const bool is_printable =
      std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isgraph(c) != 0; });
  if (is_printable) return key;
  throw ConfigError(
      "{}: the API key of {} holds blanks or control characters: copy it again from the service's "
      "page /authorize",
      source,
      public_url(base_url));
}

void find_mode(WandbAccess& access) {
  const std::string mode = environment("WANDB_MODE");
  const std::string disabled = lower_case(environment("WANDB_DISABLED"));
  const bool has_key = !access.api_key.empty();
  if (mode == "disabled" || disabled == "true" || disabled == "1") {
    access.mode = WandbMode::kDisabled;
    access.mode_reason = mode == "disabled" ? "WANDB_MODE is disabled" : "WANDB_DISABLED is set";
  } else if (mode == "offline" || mode == "dryrun") {
    access.mode = WandbMode::kOffline;
    access.mode_reason = "WANDB_MODE is " + mode;
  } else if (mode == "online" || mode == "run" || mode.empty()) {
    if (!has_key && !mode.empty()) {
      throw ConfigError(
          "WANDB_MODE is {}, but there is no API key for {}\n"
          "  Set WANDB_API_KEY, or put it into ~/.netrc (`wandb login` does so), or set "
          "WANDB_MODE=offline.",
          mode,
          public_url(access.base_url));
    }
    access.mode = has_key ? WandbMode::kOnline : WandbMode::kOffline;
    if (!has_key) {
      access.mode_reason = fmt::format("there is no API key for {} (WANDB_API_KEY, ~/.netrc)",
                                       public_url(access.base_url));
    }
  } else {
    throw ConfigError("WANDB_MODE is \"{}\": expected online, offline or disabled", mode);
  }
}

}  // namespace

std::optional<std::string> netrc_password(const std::string& text, const std::string& host) {
  std::istringstream words(text);
  std::optional<std::string> of_default;
  bool is_host = false, is_default = false;
  for (std::string word; words >> word;) {
    if (word == "machine") {
      words >> word;
      is_host = word == host;
      is_default = false;
    } else if (word == "default") {
      is_host = false;
      is_default = true;
    } else if (word == "password") {
      words >> word;
      if (is_host) return word;
      if (is_default) of_default = word;
    } else if (word == "login" || word == "account") {
      words >> word;
    } else if (word == "macdef") {  // up to an empty line
      for (std::string line; std::getline(words, line) && !line.empty();) {
      }
    } else if (word.starts_with('#')) {
      std::getline(words, word);
    }
  }
  return of_default;
}

WandbAccess find_wandb_access() {
  WandbAccess access;
  access.base_url = find_base_url();
  access.api_key = find_key(access.base_url);
  find_mode(access);
  access.folder = environment("WANDB_DIR");
  if (access.folder.empty()) access.folder = ".";
  access.run_id = environment("WANDB_RUN_ID");
  access.name = environment("WANDB_NAME");
  access.notes = environment("WANDB_NOTES");
  access.group = environment("WANDB_RUN_GROUP");
  access.job_type = environment("WANDB_JOB_TYPE");
  std::istringstream tags(environment("WANDB_TAGS"));
  for (std::string tag; std::getline(tags, tag, ',');) {
    if (!tag.empty()) access.tags.push_back(tag);
  }
  return access;
}

}  // namespace dalle2
