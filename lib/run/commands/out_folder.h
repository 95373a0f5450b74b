// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// Refuses to write `path` into a folder that is not there, which is a slip of the pen more often
/// than a wish. @param option that names it: "--out". @throws ConfigError
void check_out_folder(const std::string& option, const std::string& path);

}  // namespace dalle2
