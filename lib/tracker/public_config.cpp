// SPDX-License-Identifier: MIT
#include "tracker/public_config.h"

#include "base/untrusted_json.h"
#include "net/url.h"

namespace dalle2 {
namespace {

/// @return true if something was taken out
bool clean(Json& value) {
  bool changed = false;
  if (value.is_structured()) {
    for (auto& part : value) changed = clean(part) || changed;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    std::string shown = public_url(text);
    // The place of a shard's number is no secret, and a config without it could not be read again.
    const char* place = "{}";
    if (text.find(place) != std::string::npos && shown.find(place) == std::string::npos)
      shown += place;
    changed = shown != text;
    if (changed) value = shown;
  }
  return changed;
}

}  // namespace

std::string public_config(const std::string& json) {
  constexpr int kIndent = 4;
  ParsedJson parsed = parse_untrusted_json(json, {.comments = true});
  if (!parsed.is_right()) return json;
  Json& config = parsed.value;
  const bool has_comments = !Json::accept(json);
  const bool names_urls =
      json.find("://") != std::string::npos || json.find("pipe:") != std::string::npos;
  const bool changed = clean(config) || (has_comments && names_urls);
  return changed ? config.dump(kIndent) : json;
}

}  // namespace dalle2
