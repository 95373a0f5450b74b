// SPDX-License-Identifier: MIT
#include "io/text/caption_text.h"

#include <unicode/uchar.h>
#include <unicode/ucnv.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/untrusted_text.h"

namespace dalle2 {
namespace {

/// The encoding that a mark or the high bytes of UTF-16 show; empty without. Takes the mark off. In text of
/// letters up to Arabic most units have a high byte below 8, which no other byte of a text is.
std::string known_encoding(std::string_view& bytes) {
  UErrorCode code = U_ZERO_ERROR;
  int32_t mark = 0;
  const auto size = static_cast<int32_t>(bytes.size());
  const char* found = ucnv_detectUnicodeSignature(bytes.data(), size, &mark, &code);
  const std::string name = found == nullptr ? "" : found;
  if (name == "UTF-8" || name.starts_with("UTF-16") || name.starts_with("UTF-32")) {
    bytes.remove_prefix(static_cast<size_t>(mark));
    return name;
  }
  size_t high[2] = {0, 0};
  for (size_t i = 0; i < bytes.size(); ++i) high[i % 2] += (bytes[i] & ~7) == 0 ? 1 : 0;
  const size_t most = bytes.size() / 4;
  if (bytes.size() % 2 != 0 || (high[0] > 0) == (high[1] > 0)) return "";
  return high[1] > most ? "UTF-16LE" : high[0] > most ? "UTF-16BE" : "";
}

/// @return none for bytes that the encoding does not have
std::optional<std::string> decoded(std::string_view bytes, const std::string& encoding) {
  UErrorCode code = U_ZERO_ERROR;
  const std::unique_ptr<UConverter, void (*)(UConverter*)> converter(
      ucnv_open(encoding.c_str(), &code), &ucnv_close);
  ucnv_setToUCallBack(converter.get(), UCNV_TO_U_CALLBACK_STOP, nullptr, nullptr, nullptr, &code);
  if (U_FAILURE(code)) return std::nullopt;
  const auto size = static_cast<int32_t>(bytes.size());
  const icu::UnicodeString text(bytes.data(), size, converter.get(), code);
  std::string utf8;
  text.toUTF8String(utf8);
  // Bytes that a page of Windows does not have become the control characters U+0080 to U+009F.
  for (int32_t i = 0; !encoding.starts_with("UTF-") && i < text.length(); ++i) {
    if (text[i] >= 0x80 && text[i] < 0xa0) return std::nullopt;
  }
  return U_SUCCESS(code) && is_utf8(utf8) ? std::optional(utf8) : std::nullopt;
}

}  // namespace

bool is_blank(std::string_view text) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t i = 0; i < size;) {
    UChar32 c = 0;
    U8_NEXT(bytes, i, size, c);
    const bool is_seen = c < 0 || !(u_isUWhiteSpace(c) || u_iscntrl(c) ||
                                    u_hasBinaryProperty(c, UCHAR_DEFAULT_IGNORABLE_CODE_POINT));
    if (is_seen) return false;
  }
  return true;
}

CaptionText caption_text(std::string_view bytes, const std::string& encoding) {
  CaptionText caption;
  const std::string known = known_encoding(bytes);
  std::optional<std::string> text;
  if ((known.empty() || known == "UTF-8") && is_utf8(bytes)) {
    text = bytes;
  } else {
    text = decoded(bytes, known.empty() ? encoding : known);
    caption.is_assumed = known.empty() && text;
  }
  if (!text) {
    caption.is_unread = true;
    caption.fault = "its caption is " + (known.empty() ? "neither UTF-8 nor " + encoding +
                                                             ": caption_encoding names another"
                                                       : "damaged " + known);
  } else if (is_blank(*text)) {
    caption = {.fault = "its caption is empty"};
  } else {
    caption.text = std::move(*text);
    caption.lines = std::ssize(text_lines(caption.text));
  }
  return caption;
}

std::optional<std::string> unicode_text(std::string bytes) {
  std::string_view rest = bytes;
  const std::string known = known_encoding(rest);
  return known.empty() ? bytes : decoded(rest, known);
}

std::vector<std::string> text_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of("\r\n"), text.size());
    if (!is_blank(text.substr(0, end))) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void check_caption_encoding(const std::string& encoding, const char* key) {
  UErrorCode code = U_ZERO_ERROR;
  ucnv_close(ucnv_open(encoding.c_str(), &code));
  if (U_SUCCESS(code) && !encoding.empty()) return;
  throw ConfigError(
      "{}: ICU has no encoding \"{}\"; common ones are windows-1252, windows-1251, "
      "iso-8859-2, koi8-r, shift_jis, euc-kr, gb18030 and big5",
      key,
      printable(encoding));
}

}  // namespace dalle2
