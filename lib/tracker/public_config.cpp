// SPDX-License-Identifier: MIT
#include "tracker/public_config.h"

#include "base/untrusted_json.h"

namespace dalle2 {

std::string public_config(const std::string& json) {
  constexpr int kIndent = 4;
  ParsedJson parsed = parse_untrusted_json(json, {.comments = true});
  if (!parsed.is_right()) return json;
  take_out_secrets(parsed.value);
  return parsed.value.dump(kIndent);
}

}  // namespace dalle2
