// SPDX-License-Identifier: MIT
// A config file as a text and as the object at its root, what its JSON values may stand for by the lenient
// rules of the reference, and who may let it run commands: its author alone, in the file itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/untrusted_json.h"
#include "config/reading/faults.h"
#include "config/reading/reflect.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {

/// Applies `--set /pointer=value` (value as JSON, else as text), making objects on its way.
/// @return the pointer @throws ConfigError if it is not of that form or not UTF-8, or leads into something that is not
/// an object or list
std::string apply_override(Json& root, const std::string& assignment);

/// A value for messages, without the secrets of urls and commands, at most 60 characters.
std::string shown(const Json& value);

/// 3, 8.0, "3", true; nothing for the rest.
std::optional<int64_t> as_integer(const Json& value);
/// 3, 1e-4, "1e-4", true; nothing for the rest, and for what is not finite.
std::optional<double> as_number(const Json& value);
/// true, 1, 0.0, "yes", "off"; nothing for the rest.
std::optional<bool> as_boolean(const Json& value);

/// What is wrong with a number under `limits`: "must be > 0, got -1".
std::optional<std::string> limit_fault(const Limits& limits, double value, const std::string& got);

/// "> 0 and <= 0.01"; empty without numeric limits.
std::string limits_text(const Limits& limits);

/// @throws ConfigError for a file that cannot be read or is empty
std::string read_config_file(const std::string& path);

/// Parses JSON with comments, keys in their order (that of `preprocessing` matters); a key given
/// twice in an object is a fault.
/// @throws ConfigError with line and column if it is not JSON, or has text that is not UTF-8; if it is no object
Json parse_root(const std::string& text, const std::string& origin, Faults& faults);

/// Whether a config, as it is in its file, has a true /data/allow_pipe.
bool allows_pipe(const Json& root);

/// Adds a fault for `pipe:` urls that are not allowed, and for an override that would allow them.
/// @param file_allows_pipe allows_pipe() of the file, before what the command line changes
void check_commands(const ShardDataConfig& data, bool file_allows_pipe, Faults& faults);

}  // namespace dalle2
