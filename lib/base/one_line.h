// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace dalle2 {

/// A name from somebody's file, for use within a line: printable(), with its line breaks as `\x0a`
/// too.
std::string one_line(const std::string& text);

/// JSON text as a terminal may show it: DEL and the control characters U+0080 to U+009F, which JSON
/// leaves as they are, as `\u009b`. It means the same.
std::string escaped_json(const std::string& json);

}  // namespace dalle2
