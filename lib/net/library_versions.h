// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// The libraries that this layer runs with: "libcurl 7.88.1, OpenSSL 3.0.17".
std::string net_library_versions();

}  // namespace dalle2
