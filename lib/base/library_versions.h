// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// The libraries that this layer is linked with, or whose headers it is compiled with: "fmt 9.1.0, ...".
std::string base_library_versions();

}  // namespace dalle2
