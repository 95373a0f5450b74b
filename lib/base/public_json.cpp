// SPDX-License-Identifier: MIT
#include "base/public_json.h"

#include <string>

#include "base/public_url.h"

namespace dalle2 {

bool take_out_secrets(Json& value) {
  bool changed = false;
  if (value.is_structured()) {
    for (auto& part : value) changed = take_out_secrets(part) || changed;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    std::string shown = public_url(text);
    const char* place = "{}";
    if (text.find(place) != std::string::npos && shown.find(place) == std::string::npos)
      shown += place;
    changed = shown != text;
    if (changed) value = shown;
  }
  return changed;
}

}  // namespace dalle2
