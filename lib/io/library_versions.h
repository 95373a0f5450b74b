// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// The libraries that this layer runs with; those that do not tell, as they were compiled with.
std::string io_library_versions();

}  // namespace dalle2
