// SPDX-License-Identifier: MIT
// JSON values of this layer. Only the visitors' files include it: json.hpp is slow to compile.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "config/faults.h"

namespace dalle2 {

/// Keeps the order of the keys: that of `preprocessing` matters.
using Json = nlohmann::ordered_json;

/// Parses JSON with comments; a key given twice in an object is a fault.
/// @throws ConfigError with line and column if it is no JSON
Json parse_json(const std::string& text, const std::string& origin, Faults& faults);

/// Applies `--set /pointer=value` (value as JSON, else as text), making objects on its way.
/// @throws ConfigError if it is not of that form or leads into something that is not an object or
/// list
void apply_override(Json& root, const std::string& assignment);

/// A value for messages, at most 60 characters.
std::string shown(const Json& value);

/// `key` as a part of a JSON pointer: "~" and "/" escaped.
std::string pointer_part(const std::string& key);

}  // namespace dalle2
