// SPDX-License-Identifier: MIT
// Who may let a config run commands: its author alone, in the file itself.
#pragma once

#include "config/reading/faults.h"
#include "config/reading/json_text.h"
#include "config/shared/shard_data_config.h"

namespace dalle2 {

/// Whether a config, as it stands in its file, has a true /data/allow_pipe.
bool allows_pipe(const Json& root);

/// Adds a fault for `pipe:` urls that are not allowed, and for an override that would allow them.
/// @param file_allows_pipe allows_pipe() of the file, before what the command line changes
void check_commands(const ShardDataConfig& data, bool file_allows_pipe, Faults& faults);

}  // namespace dalle2
