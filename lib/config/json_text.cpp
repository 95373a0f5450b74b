// SPDX-License-Identifier: MIT
#include "config/json_text.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace dalle2 {
namespace {

// An object or list that the parser is inside of.
struct Level {
  bool is_object = false;
  std::set<std::string> keys;
  std::string key;     // the latest, of an object
  int64_t index = -1;  // of a list

  std::string part() const { return is_object ? pointer_part(key) : std::to_string(index); }
};

std::string pointer_of(const std::vector<Level>& levels) {
  std::string pointer;
  for (const Level& level : levels) pointer += "/" + level.part();
  return pointer;
}

// nlohmann's text is "[json.exception.parse_error.101] parse error at line 3, column 5: ...".
std::string without_prefix(const std::string& what) {
  const size_t end = what.find("] ");
  return end == std::string::npos ? what : what.substr(end + 2);
}

// Far more than any config has; values are walked by functions that call themselves.
constexpr int kMostLevels = 100;

void refuse_depth(int depth, const std::string& origin) {
  if (depth > kMostLevels) {
    throw ConfigError(
        "{}: lists and objects within each other more than {} levels deep", origin, kMostLevels);
  }
}

}  // namespace

Json parse_json(const std::string& text, const std::string& origin, Faults& faults) {
  std::vector<Level> levels;
  const auto enter_element = [&] {
    if (!levels.empty() && !levels.back().is_object) ++levels.back().index;
  };
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    refuse_depth(depth, origin);
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        enter_element();
        levels.emplace_back();
        levels.back().is_object = event == Json::parse_event_t::object_start;
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        levels.pop_back();
        break;
      case Json::parse_event_t::key:
        levels.back().key = parsed.get<std::string>();
        if (!levels.back().keys.insert(levels.back().key).second) {
          faults.error(pointer_of(levels), "given twice; remove one of the two");
        }
        break;
      case Json::parse_event_t::value:
        enter_element();
        break;
    }
    return true;
  };
  try {
    return Json::parse(text, watch, /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    throw ConfigError("{}: not valid JSON: {}", origin, without_prefix(error.what()));
  }
}

void apply_override(Json& root, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || assignment[0] != '/') {
    throw ConfigError("--set \"{}\": expected /pointer=value, e.g. --set /train/lr=3e-4",
                      assignment);
  }
  const std::string pointer = assignment.substr(0, equals);
  const std::string text = assignment.substr(equals + 1);
  const Json::parser_callback_t watch = [&](int depth, Json::parse_event_t, Json&) {
    refuse_depth(depth, "--set " + pointer);
    return true;
  };
  Json value = Json::parse(text, watch, /*allow_exceptions=*/false);
  if (value.is_discarded()) value = text;
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
      at = at->is_array() ? &at->at(Json::json_pointer("/" + part)) : &(*at)[part];
      rest = Json::json_pointer();
      for (size_t i = parts.size() - 1; i-- > 0;) rest.push_back(parts[i]);
    }
    *at = std::move(value);
  } catch (const Json::exception& error) {
    throw ConfigError(
        "--set \"{}\": no such place in the config: {}", assignment, without_prefix(error.what()));
  }
}

std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost - 3) + "...";
}

std::string pointer_part(const std::string& key) {
  std::string part;
  for (const char c : key) part += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return part;
}

}  // namespace dalle2
