// SPDX-License-Identifier: MIT
#include "config/shared/save_config_json.h"

#include "base/untrusted_json.h"
#include "config/reading/reader.h"
#include "config/reading/writer.h"

namespace dalle2 {
namespace {

/// As a template that stands for itself.
std::string literal(const std::string& target) {
  std::string text;
  for (const char c : target) {
    text += c;
    if (c == '{' || c == '}') text += c;
  }
  return text;
}

}  // namespace

std::string save_config_json(const SaveConfig& config, const std::string& target) {
  Json json = to_json(config);
  json["save_latest_to"] = literal(target);
  json.erase("save_best_to");
  json.erase("save_meta_to");
  take_out_secrets(json);
  return json.dump();
}

SaveConfig read_save_config(const std::string& json, const std::string& origin) {
  ReadFindings findings;
  SaveConfig config;
  const Json parsed = parse_untrusted_object(json);
  Reader(findings).read(ValueAt{parsed, "", any_value()}, config);
  findings.faults.throw_if_any(origin);
  return config;
}

}  // namespace dalle2
