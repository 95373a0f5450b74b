// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include "tracker/run_folder/run_lock.h"

namespace dalle2 {

/// Refuses to write `path` into a folder that is not there, which is a slip of the pen more often
/// than a wish. @param option that names it: "--out". @throws ConfigError
void check_out_folder(const std::string& option, const std::string& path);

/// Makes the folder `out` (option --out) of a command that writes shards, and holds its lock: the
/// shards of two commands would be mixed. @throws ConfigError if another process writes there
std::shared_ptr<RunLock> hold_shards_folder(const std::string& out);

}  // namespace dalle2
