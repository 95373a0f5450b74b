// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <string>

namespace dalle2 {

/// Refuses to write `path` into a folder that is not there, which is a slip of the pen more often
/// than a wish. @param option that names it: "--out". @throws ConfigError
void check_out_folder(const std::string& option, const std::string& path);

/// Refuses to replace a file that is there. @param option that names it: "--out" @throws ConfigError
void check_new_file(const std::string& option, const std::string& path, bool overwrite);

/// Makes the folder `out` (option --out) of a command that writes shards, and holds its lock as long
/// as the result lives: the shards of two commands would be mixed. @throws ConfigError if another
/// process writes there
/// @return to be called before each file: throws ConfigError once another process has taken over
std::function<void()> hold_shards_folder(const std::string& out);

}  // namespace dalle2
