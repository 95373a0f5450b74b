// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// Version of this program, e.g. "0.1.0".
std::string program_version();

/// Version of dalle2-pytorch whose checkpoint layout we write; our files hold it under `version`.
inline constexpr const char* kCheckpointLayoutVersion = "1.15.6";

}  // namespace dalle2
