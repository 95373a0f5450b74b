// SPDX-License-Identifier: MIT
#include "tracker/public_config.h"

#include "base/untrusted_json.h"

namespace dalle2 {

std::string public_config(const std::string& json) {
  constexpr int kIndent = 4;
  ParsedJson parsed = parse_untrusted_json(json, {.comments = true});
  if (!parsed.is_right()) return json;
  Json& config = parsed.value;
  const bool has_comments = !Json::accept(json);
  const bool names_urls =
      json.find("://") != std::string::npos || json.find("pipe:") != std::string::npos;
  const bool changed = take_out_secrets(config) || (has_comments && names_urls);
  return changed ? config.dump(kIndent) : json;
}

}  // namespace dalle2
