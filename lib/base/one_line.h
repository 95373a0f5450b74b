// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A name from somebody's file, for use within a line: printable(), with its line breaks as `\x0a`
/// too.
std::string one_line(const std::string& text);

}  // namespace dalle2
