// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// What stands behind the last slash of an url's path, without query and fragment; of a command,
/// behind its last slash. It tells shards apart and may hold a command's secrets: it is not to be
/// shown.
std::string url_file_name(const std::string& url);

}  // namespace dalle2
