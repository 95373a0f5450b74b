// SPDX-License-Identifier: MIT
#include "config/kinds.h"

#include "base/error.h"
#include "config/loaded_config.h"
#include "config/root_json.h"

namespace dalle2 {
namespace {

struct Kind {
  const char* key;
  bool available;
};
constexpr Kind kKinds[] = {{"decoder", true}, {"prior", true}, {"vae", true}, {"clip", false}};

std::string not_available(const Kind& kind) {
  return fmt::format("\"{}\" {}", kind.key, kLaterKind);
}

}  // namespace

const std::vector<std::string>& known_root_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> all = {"$schema"};
    for (const Kind& kind : kKinds) all.emplace_back(kind.key);
    return all;
  }();
  return keys;
}

void refuse_other_kinds(const Json& root, const std::string& kind, ReadFindings& findings) {
  for (const Kind& other : kKinds) {
    if (other.key == kind || !root.contains(other.key)) continue;
    const std::string pointer = std::string("/") + other.key;
    if (other.available) {
      findings.faults.error(
          pointer,
          fmt::format("has no place here: this needs the config of a {}, and a file trains either "
                      "a decoder, a prior or a VAE",
                      kind));
    } else {
      findings.unavailable.push_back({pointer, not_available(other)});
    }
  }
}

std::string config_kind(const std::string& path) {
  Faults ignored;  // reading the whole config reports them
  const Json root = parse_root(read_config_file(path), path, ignored);
  const Kind* found = nullptr;
  for (const Kind& kind : kKinds) {
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
        "{}: has none of the root keys that say what is trained; give \"decoder\", \"prior\" or "
        "\"vae\", as the examples in configs/ do",
        path);
  }
  if (!found->available) throw ConfigError("{}: /{}: {}", path, found->key, not_available(*found));
  return found->key;
}

}  // namespace dalle2
