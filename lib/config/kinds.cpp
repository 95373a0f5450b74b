// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/root_json.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {
namespace {

std::string not_available(const ConfigKind& kind) {
  return fmt::format(
      "\"{}\" is not available yet: this version trains {}", kind.key, available_kinds());
}

}  // namespace

std::vector<ConfigKind>& config_kinds() {
  static std::vector<ConfigKind> kinds = {
      decoder_kind(), prior_kind(), vae_kind(), {.key = "clip", .available = false}};
  return kinds;
}

const ConfigKind& config_kind_of(const std::string& key) {
  for (const ConfigKind& kind : config_kinds()) {
    if (kind.key != key) continue;
    if (!kind.available) throw ConfigError("{}", not_available(kind));
    return kind;
  }
  throw ConfigError("no kind \"{}\" of config; known are {}", key, available_kinds());
}

std::string available_kinds() {
  std::vector<std::string> keys;
  for (const ConfigKind& kind : config_kinds()) {
    if (kind.available) keys.push_back(fmt::format("\"{}\"", kind.key));
  }
  const std::string last = keys.back();
  keys.pop_back();
  return fmt::format("{} and {}", fmt::join(keys, ", "), last);
}

std::vector<std::string> known_root_keys() {
  std::vector<std::string> all = {"$schema"};
  for (const ConfigKind& kind : config_kinds()) all.push_back(kind.key);
  return all;
}

void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings) {
  for (const ConfigKind& other : config_kinds()) {
    if (other.key == kind || !root.contains(other.key)) continue;
    const std::string pointer = std::string("/") + other.key;
    if (other.available) {
      findings.faults.error(
          pointer,
          fmt::format(
              "has no place here: this needs the config of a {}, and a file trains one kind",
              kind));
    } else {
      findings.unavailable.push_back({pointer, not_available(other)});
    }
  }
}

std::string config_kind(const std::string& path) {
  Faults ignored;  // reading the whole config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  const ConfigKind* found = nullptr;
  for (const ConfigKind& kind : config_kinds()) {
    if (!root.contains(kind.key)) continue;
    if (found != nullptr) {
      throw ConfigError("{}: has both \"{}\" and \"{}\"; a config trains one of them",
                        path,
                        found->key,
                        kind.key);
    }
    found = &kind;
  }
  if (found == nullptr) {
    throw ConfigError(
        "{}: has none of the root keys that say what is trained ({}); the examples in configs/ have "
        "one",
        path,
        available_kinds());
  }
  if (!found->available) throw ConfigError("{}: /{}: {}", path, found->key, not_available(*found));
  return found->key;
}

}  // namespace dalle2
