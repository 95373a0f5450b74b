// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// %XX as the bytes they stand for; others are kept.
std::string uri_decode(const std::string& text);

/// The five entities that XML knows, and HTML too, as the characters they stand for.
std::string without_entities(std::string_view text);

}  // namespace dalle2
