// SPDX-License-Identifier: MIT
// The files of a table that lies in a folder.
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// Files with one of `extensions` (".npy") in a folder and those below it, in the order of their paths.
/// @param key where the folder is named, for messages
/// @throws DataError for what is no folder, or cannot be read
std::vector<std::string> table_files(const std::string& folder,
                                     const std::string& key,
                                     const std::vector<std::string>& extensions);

}  // namespace dalle2
