// SPDX-License-Identifier: MIT
#include "run/config_secrets.h"

#include <nlohmann/json.hpp>

#include "net/url.h"

namespace dalle2 {
namespace {

/// @return true if something was taken out
bool clean(nlohmann::ordered_json& value) {
  bool changed = false;
  if (value.is_structured()) {
    for (auto& part : value) changed = clean(part) || changed;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    const bool remote =
        text.starts_with("http://") || text.starts_with("https://") || text.starts_with("s3://");
    const std::string shown = remote ? public_url(text) : text;
    changed = shown != text;
    if (changed) value = shown;
  }
  return changed;
}

}  // namespace

std::string without_url_secrets(const std::string& json) {
  auto config = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  constexpr int kIndent = 4;
  return !config.is_discarded() && clean(config) ? config.dump(kIndent) : json;
}

}  // namespace dalle2
