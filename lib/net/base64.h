// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// RFC 4648, section 4.
std::string base64(std::string_view bytes);

}  // namespace dalle2
