// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "config/clip/clip_run_config.h"
#include "config/decoder/decoder_run_config.h"
#include "config/prior/prior_run_config.h"
#include "config/reading/reader.h"
#include "config/reading/root_json.h"
#include "config/vae/vae_run_config.h"

namespace dalle2 {

std::vector<ConfigKind>& config_kinds() {
  static std::vector<ConfigKind> kinds = {decoder_kind(), prior_kind(), vae_kind(), clip_kind()};
  return kinds;
}

const ConfigKind& config_kind_of(const std::string& key) {
  for (const ConfigKind& kind : config_kinds()) {
    if (kind.key == key) return kind;
  }
  throw ConfigError("no kind \"{}\" of config; known are {}", key, available_kinds());
}

std::string available_kinds() {
  std::vector<std::string> keys;
  for (const ConfigKind& kind : config_kinds()) keys.push_back(fmt::format("\"{}\"", kind.key));
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
    findings.faults.error(
        "/" + other.key,
        fmt::format("has no place here: this needs the config of a {}, and a file trains one kind",
                    kind));
  }
}

/// " (did you mean "decoder" instead of "decodr"?)", if a key of `root` is nearly that of a kind.
static std::string near_kind(const Json& root) {
  std::vector<std::string> kinds;
  for (const ConfigKind& kind : config_kinds()) kinds.push_back(kind.key);
  for (const auto& [key, value] : root.items()) {
    if (const auto near = nearest_word(key, kinds)) {
      return fmt::format(" (did you mean \"{}\" instead of {}?)", *near, shown(key));
    }
  }
  return "";
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
        "{}: has none of the root keys that say what is trained ({}){}; the examples in configs/ have one",
        path,
        available_kinds(),
        near_kind(root));
  }
  return found->key;
}

std::string config_schema(const std::string& kind) {
  Json schema = {
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"title", fmt::format("dalle2-train {} config", kind)},
      {"$comment",
       "Generated from lib/config. The strict form: the program also takes \"3\" and 8.0 for "
       "integers, \"1e-4\" for numbers, 0, 1, \"yes\" and \"no\" for booleans, and ignores unknown "
       "keys with a warning."}};
  schema.update(config_kind_of(kind).schema());
  schema["properties"]["$schema"] = Json{{"type", "string"}};
  return schema.dump(2) + "\n";
}

}  // namespace dalle2
