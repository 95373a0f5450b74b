// SPDX-License-Identifier: MIT
// A config file as a text and as the object at its root, and who may let it run commands: its author
// alone, in the file itself.
#pragma once

#include <string>

#include "config/reading/faults.h"
#include "config/reading/json_text.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {

/// @throws ConfigError for a file that cannot be read or is empty
std::string read_config_file(const std::string& path);

/// @throws ConfigError unless `text` is an object
Json parse_root(const std::string& text, const std::string& origin, Faults& faults);

/// Whether a config, as it is in its file, has a true /data/allow_pipe.
bool allows_pipe(const Json& root);

/// Adds a fault for `pipe:` urls that are not allowed, and for an override that would allow them.
/// @param file_allows_pipe allows_pipe() of the file, before what the command line changes
void check_commands(const ShardDataConfig& data, bool file_allows_pipe, Faults& faults);

}  // namespace dalle2
