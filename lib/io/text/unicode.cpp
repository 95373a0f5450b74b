// SPDX-License-Identifier: MIT
#include "io/text/unicode.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "base/error.h"

namespace dalle2 {
namespace {

icu::UnicodeString to_icu(std::u32string_view text) {
  return icu::UnicodeString::fromUTF32(reinterpret_cast<const UChar32*>(text.data()),
                                       static_cast<int32_t>(text.size()));
}

std::u32string from_icu(const icu::UnicodeString& text) {
  std::u32string points(static_cast<size_t>(text.countChar32()), U'\0');
  UErrorCode code = U_ZERO_ERROR;
  text.toUTF32(
      reinterpret_cast<UChar32*>(points.data()), static_cast<int32_t>(points.size()), code);
  return points;
}

template <class GetForm>
std::u32string normalized(const std::u32string& text, const GetForm& get_form) {
  UErrorCode code = U_ZERO_ERROR;
  const icu::Normalizer2* form = get_form(code);
  const icu::UnicodeString result =
      U_SUCCESS(code) ? form->normalize(to_icu(text), code) : icu::UnicodeString();
  if (U_FAILURE(code)) {
    throw ResourceError("ICU cannot normalise a text: {}; is its data installed?",
                        u_errorName(code));
  }
  return from_icu(result);
}

bool is_of(char32_t c, uint32_t categories) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & categories) != 0;
}

}  // namespace

std::u32string code_points(std::string_view text) {
  return from_icu(icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size()))));
}

std::string utf8(std::u32string_view text) {
  std::string bytes;
  to_icu(text).toUTF8String(bytes);
  return bytes;
}

std::u32string nfc(const std::u32string& text) {
  return normalized(text, icu::Normalizer2::getNFCInstance);
}

std::u32string nfkc(const std::u32string& text) {
  return normalized(text, icu::Normalizer2::getNFKCInstance);
}

std::u32string nfkd(const std::u32string& text) {
  return normalized(text, icu::Normalizer2::getNFKDInstance);
}

std::u32string lower_case_of(const std::u32string& text) {
  return from_icu(to_icu(text).toLower(icu::Locale::getRoot()));
}

std::u32string upper_case_of(const std::u32string& text) {
  return from_icu(to_icu(text).toUpper(icu::Locale::getRoot()));
}

bool is_letter(char32_t c) {
  return is_of(c, U_GC_L_MASK);
}

bool is_number(char32_t c) {
  return is_of(c, U_GC_N_MASK);
}

bool is_decimal_digit(char32_t c) {
  return is_of(c, U_GC_ND_MASK);
}

bool is_white_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0;
}

}  // namespace dalle2
