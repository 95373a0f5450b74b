// SPDX-License-Identifier: MIT
#include "net/wandb_access.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/public_url.h"
#include "base/text.h"
#include "net/environment.h"
#include "net/http_call.h"
#include "net/ini_file.h"
#include "net/netrc.h"

namespace dalle2 {
namespace {

constexpr const char* kService = "https://api.wandb.ai";

/// A text and where it stands, for people.
struct Setting {
  std::string value, source;
};

/// What `wandb offline`, `wandb login --host` and the like have written.
class Settings {
 public:
  explicit Settings(const std::string& folder) {
    std::string global = environment("WANDB_CONFIG_DIR");
    if (global.empty()) global = environment("HOME") + "/.config/wandb";
    for (const std::string& path : {folder + "/settings", global + "/settings"}) {
      files_.emplace_back(path, read_ini(path)["default"]);
    }
  }
  /// Of the environment, else of the files.
  Setting get(const char* variable, const std::string& key) const {
    Setting setting{environment(variable), variable};
    for (const auto& [path, section] : files_) {
      if (setting.value.empty()) setting = {value_of(section, key), path + ": " + key};
    }
    if (setting.value.empty()) setting.source = variable;
    return setting;
  }

 private:
  std::vector<std::pair<std::string, IniSection>> files_;
};

/// ./wandb or, where it is there already, ./.wandb
std::string find_folder() {
  std::string parent = environment("WANDB_DIR");
  if (parent.empty()) parent = ".";
  std::error_code error;
  return parent + (std::filesystem::exists(parent + "/.wandb", error) ? "/.wandb" : "/wandb");
}

/// Host and port of an http(s) address.
std::string authority_of(const std::string& url) {
  const size_t begin = url.find("://") + 3;
  return url.substr(begin, url.find('/', begin) - begin);
}

std::string find_base_url(const Settings& settings) {
  auto [url, source] = settings.get("WANDB_BASE_URL", "base_url");
  if (url.empty()) url = kService;
  while (url.ends_with('/')) url.pop_back();
  const bool is_plain = url.starts_with("http://");
  if (!is_plain && !url.starts_with("https://")) {
    throw ConfigError(
        "{} is \"{}\": expected an address such as {}", source, public_url(url), kService);
  }
  if (public_url(url) != url) {
    throw ConfigError(
        "{} is {} with a login or a query\n  Give the address alone, and the key in WANDB_API_KEY or "
        "~/.netrc.",
        source,
        public_url(url));
  }
  if (is_plain && !is_loopback_url(url)) {
    throw ConfigError(
        "{} is \"{}\": plain http to another machine would show the API key to others\n"
        "  Give an https address.",
        source,
        url);
  }
  return url;
}

std::string find_key(const std::string& base_url) {
  std::string key = environment("WANDB_API_KEY");
  std::string source = "WANDB_API_KEY";
  if (key.empty()) {
    const NetrcFile file = read_netrc();
    source = file.path;
    key = netrc_login(file.text, authority_of(base_url)).value_or(NetrcLogin{}).password;
  }
  const bool is_printable =
      std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isgraph(c) != 0; });
  if (is_printable) return key;
  throw ConfigError(
      "{}: the API key of {} holds blanks or control characters: copy it again from the service's "
      "page /authorize",
      source,
      base_url);
}

void find_mode(WandbAccess& access, const Setting& setting) {
  const std::string& mode = setting.value;
  const std::string disabled = lower_case(environment("WANDB_DISABLED"));
  if (disabled == "true" || disabled == "1") {
    access.mode = WandbMode::kDisabled;
    access.mode_reason = "WANDB_DISABLED is set";
  } else if (mode == "disabled") {
    access.mode = WandbMode::kDisabled;
    access.mode_reason = setting.source + " is disabled";
  } else if (mode == "offline" || mode == "dryrun") {
    access.mode_reason = setting.source + " is " + mode;
  } else if (!mode.empty() && mode != "online" && mode != "run") {
    throw ConfigError("{} is \"{}\": expected online, offline or disabled", setting.source, mode);
  } else if (!access.api_key.empty()) {
    access.mode = WandbMode::kOnline;
  } else if (mode.empty()) {
    access.mode_reason =
        fmt::format("there is no API key for {} (WANDB_API_KEY, ~/.netrc)", access.base_url);
  } else {
    throw ConfigError(
        "{} is {}, but there is no API key for {}\n"
        "  Set WANDB_API_KEY, or put it into ~/.netrc (`wandb login` does so), or set "
        "WANDB_MODE=offline.",
        setting.source,
        mode,
        access.base_url);
  }
}

}  // namespace

WandbAccess find_wandb_access() {
  WandbAccess access;
  access.folder = find_folder();
  const Settings settings(access.folder);
  access.base_url = find_base_url(settings);
  access.api_key = find_key(access.base_url);
  find_mode(access, settings.get("WANDB_MODE", "mode"));
  access.console = settings.get("WANDB_CONSOLE", "console").value != "off";
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
