// SPDX-License-Identifier: MIT
// JSON values of this layer. Only the visitors' files include it: json.hpp is slow to compile.
#pragma once

#include <string>

#include "base/untrusted_json.h"
#include "config/reading/faults.h"

namespace dalle2 {

/// Parses JSON with comments, keys in their order (that of `preprocessing` matters); a key given
/// twice in an object is a fault.
/// @throws ConfigError with line and column if it is not JSON, or has text that is not UTF-8
Json parse_json(const std::string& text, const std::string& origin, Faults& faults);

/// Applies `--set /pointer=value` (value as JSON, else as text), making objects on its way.
/// @return the pointer @throws ConfigError if it is not of that form or not UTF-8, or leads into something that is not
/// an object or list
std::string apply_override(Json& root, const std::string& assignment);

/// A value for messages, without the secrets of urls and commands, at most 60 characters.
std::string shown(const Json& value);

}  // namespace dalle2
