// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// Refuses to write `path` into a folder that is not there, which is a slip of the pen more often
/// than a wish. @param option that names it: "--out". @throws ConfigError
void check_out_folder(const std::string& option, const std::string& path);

/// Refuses to replace a file that is there. @param option that names it: "--out" @throws ConfigError
void check_new_file(const std::string& option, const std::string& path, bool overwrite);

}  // namespace dalle2
