// SPDX-License-Identifier: MIT
// Unicode text as code points, with the properties that cleaning captions needs.
#pragma once

#include <string>
#include <string_view>

namespace dalle2 {

/// @param text each byte that is not part of a UTF-8 character becomes U+FFFD
std::u32string code_points(std::string_view text);
std::string utf8(std::u32string_view text);

/// Canonical composition (Unicode Standard Annex 15).
std::u32string nfc(const std::u32string& text);
/// Compatibility composition.
std::u32string nfkc(const std::u32string& text);
/// Compatibility decomposition: accents stand behind their letters.
std::u32string nfkd(const std::u32string& text);
/// Lower case without regard to a language: "İ" becomes "i" and U+0307, "Σ" at the end of a word "ς".
std::u32string lower_case_of(const std::u32string& text);
std::u32string upper_case_of(const std::u32string& text);

bool is_letter(char32_t c);
/// A digit, a fraction, a Roman numeral, ...
bool is_number(char32_t c);
/// 0 to 9 of any script.
bool is_decimal_digit(char32_t c);
/// The property White_Space.
bool is_white_space(char32_t c);

}  // namespace dalle2
