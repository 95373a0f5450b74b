// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// Of this machine; "localhost" if it has none.
std::string host_name();

}  // namespace dalle2
