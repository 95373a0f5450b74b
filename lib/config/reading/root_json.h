// SPDX-License-Identifier: MIT
// A config file as a text and as the object at its root.
#pragma once

#include <string>

#include "config/reading/json_text.h"

namespace dalle2 {

/// @throws ConfigError for a file that cannot be read or is empty
std::string read_config_file(const std::string& path);

/// @throws ConfigError unless `text` is an object
Json parse_root(const std::string& text, const std::string& origin, Faults& faults);

}  // namespace dalle2
