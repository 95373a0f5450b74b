// SPDX-License-Identifier: MIT
// Character references of HTML in a text: "&amp;", "&#233;", "&#xe9;".
#pragma once

#include <string>

namespace dalle2 {

/// Replaces the references as a browser does (HTML Living Standard, section 13.2.5.72), also those
/// without a semicolon: "&notit" becomes "¬it". Equal to Python's html.unescape().
std::u32string unescape_html(const std::u32string& text);

/// Replaces only what ends in a semicolon, and knows names that were set in capitals besides:
/// "&EACUTE;" becomes "É". Equal to unescape_html() of ftfy 6.3.
std::u32string unescape_closed_html(const std::u32string& text);

/// What a character U+0080 to U+009F, a control of no use, means where it was a byte of Windows-1252; the
/// character itself if nothing, and for all others.
char32_t windows_1252_meaning(char32_t c);

}  // namespace dalle2
