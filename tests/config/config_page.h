// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// docs/config.md, as the structs say it.
std::string config_page();

}  // namespace dalle2
