// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

namespace dalle2 {

/// The names in a folder of this machine, in no order; none of one that is not there or cannot be
/// opened. @throws DataError if the listing breaks off: what it gave is not the whole
std::vector<std::string> names_in_folder(const std::string& folder);

/// The paths of what lies in a folder of this machine and is no folder, by name.
/// @throws DataError if the folder is not there, or cannot be read to its end
std::vector<std::string> files_in_folder(const std::string& folder);

}  // namespace dalle2
