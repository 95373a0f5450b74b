// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// `text` with every byte but A-Z a-z 0-9 - . _ ~ as %XX; with `keep_slash` slashes stay too.
std::string uri_encode(std::string_view text, bool keep_slash = false);

/// %XX as the bytes they stand for; others are kept.
std::string uri_decode(const std::string& text);

/// The five entities that XML knows, and HTML too, as the characters they stand for.
std::string without_entities(std::string_view text);

}  // namespace dalle2
