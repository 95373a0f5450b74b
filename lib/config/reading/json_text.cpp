// SPDX-License-Identifier: MIT
#include "config/reading/json_text.h"

#include <vector>

#include "base/error.h"
#include "base/public_url.h"
#include "base/untrusted_json.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

// Far more than any config has: what is done with the keys may take the square of their number.
constexpr JsonRules kConfigRules = {.most_levels = 100, .most_keys = 10'000, .comments = true};

// The value of an assignment: JSON, else the text itself.
Json value_of_assignment(const std::string& pointer, const std::string& text) {
  const auto refuse = [&](const std::string& fault) {
    throw ConfigError("--set {}: {}", as_utf8(pointer), fault);
  };
  for (const std::string& part : {pointer, text}) {
    if (const auto fault = utf8_fault(part)) refuse(*fault);
  }
  JsonRules rules = kConfigRules;
  rules.comments = false;
  ParsedJson parsed = parse_untrusted_json(text, rules);
  // A template may begin with {}.
  const bool is_meant_as_json = text.starts_with("[") || text.starts_with("{\"");
  if (parsed.is_no_json && !is_meant_as_json) return text;
  if (!parsed.is_right()) refuse(parsed.fault);
  return std::move(parsed.value);
}

/// Without what it sets to what: a value may be long and hold secrets.
std::string shown_assignment(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  return public_url(assignment.substr(0, equals)) + (equals == std::string::npos ? "" : "=...");
}

}  // namespace

Json parse_json(const std::string& text, const std::string& origin, Faults& faults) {
  ParsedJson parsed = parse_untrusted_json(text, kConfigRules);
  if (!parsed.is_right()) throw ConfigError("{}: {}", origin, parsed.fault);
  for (const std::string& pointer : parsed.twice) {
    faults.error(pointer, "given twice; remove one of the two");
  }
  return std::move(parsed.value);
}

std::string apply_override(Json& root, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || assignment[0] != '/') {
    throw ConfigError("--set \"{}\": expected /pointer=value, e.g. --set /train/lr=3e-4",
                      shown_assignment(assignment));
  }
  const std::string pointer = assignment.substr(0, equals);
  Json value = value_of_assignment(pointer, assignment.substr(equals + 1));
  try {
    const Json::json_pointer path(pointer);
    // Make the objects on the way; nlohmann would make lists of keys that look like numbers.
    Json* at = &root;
    for (Json::json_pointer rest = path; !rest.empty();) {
      std::vector<std::string> parts;
      for (Json::json_pointer p = rest; !p.empty(); p.pop_back()) parts.push_back(p.back());
      const std::string part = parts.back();
      if (at->is_null()) *at = Json::object();
      // One past its end appends to a list.
      if (at->is_array() && part == std::to_string(at->size())) at->push_back(nullptr);
      if (!at->is_structured()) {
        throw ConfigError("--set {}: no such place in the config: it leads through the value {}",
                          pointer,
                          shown(*at));
      }
      at = at->is_array() ? &at->at(Json::json_pointer("/" + part)) : &(*at)[part];
      rest = Json::json_pointer();
      for (size_t i = parts.size() - 1; i-- > 0;) rest.push_back(parts[i]);
    }
    *at = std::move(value);
  } catch (const Json::exception& error) {
    throw ConfigError("--set {}: no such place in the config: {}", pointer, json_error_text(error));
  }
  return pointer;
}

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  Json public_value = value;
  take_out_secrets(public_value);
  // Of keys, which are not values, the urls alone.
  const std::string text = without_tokens(
      public_text(public_value.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

}  // namespace dalle2
