// SPDX-License-Identifier: MIT
// Text from other people's files: names, keys, captions.
#pragma once

#include <string>

namespace dalle2 {

/// True for well-formed UTF-8 (RFC 3629).
bool is_utf8(const std::string& text);

/// The text with its control characters as `\x1b`, so that no name in a file can write to the
/// terminal or begin a line of the log. Line breaks before two spaces, which continue a message,
/// stay.
std::string printable(const std::string& text);

}  // namespace dalle2
