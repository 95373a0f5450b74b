// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dalle2 {

/// Text as part of a page or of an attribute. Bytes that are not UTF-8 become replacement
/// characters, control characters are shown as `\x1b`.
std::string html_escape(std::string_view text);

/// A value for people: 0.01234, 1.5e-05, 1,234; "not finite" for NaN and infinity.
std::string number_text(double value);

}  // namespace dalle2
