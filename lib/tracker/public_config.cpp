// SPDX-License-Identifier: MIT
#include "tracker/public_config.h"

#include <nlohmann/json.hpp>

#include "net/url.h"

namespace dalle2 {
namespace {

using Json = nlohmann::ordered_json;

/// @return true if something was taken out
bool clean(Json& value) {
  bool changed = false;
  if (value.is_structured()) {
    for (auto& part : value) changed = clean(part) || changed;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>(), shown = public_url(text);
    changed = shown != text;
    if (changed) value = shown;
  }
  return changed;
}

}  // namespace

std::string public_config(const std::string& json) {
  constexpr int kIndent = 4;
  Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (config.is_discarded()) return json;
  const bool has_comments = !Json::accept(json);
  const bool names_urls =
      json.find("://") != std::string::npos || json.find("pipe:") != std::string::npos;
  const bool changed = clean(config) || (has_comments && names_urls);
  return changed ? config.dump(kIndent) : json;
}

}  // namespace dalle2
