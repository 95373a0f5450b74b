// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A name out of somebody's file within a line: printable(), and its line breaks as `\x0a`, too.
std::string one_line(const std::string& text);

}  // namespace dalle2
