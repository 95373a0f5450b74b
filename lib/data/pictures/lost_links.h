// SPDX-License-Identifier: MIT
// Links of a folder of pictures that lead nowhere, as a copy on another machine leaves them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace dalle2 {

/// Whether an entry is a link whose target does not exist or cannot be reached.
bool is_lost_link(const std::filesystem::path& path);

/// "2 links whose targets do not exist or cannot be reached"
std::string counted_lost_links(size_t count);

/// One warning that names them, or nothing if there are none.
/// @param links paths below the folder, in any order
void warn_of_lost_links(const std::string& folder, std::vector<std::string> links);

}  // namespace dalle2
