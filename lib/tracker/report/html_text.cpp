// SPDX-License-Identifier: MIT
#include "tracker/report/html_text.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "base/untrusted_text.h"

namespace dalle2 {
std::string html_escape(std::string_view text) {
  std::string escaped;
  for (const char c : as_utf8(text)) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
          escaped += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));  // none of HTML's
        } else {
          escaped += c;
        }
    }
  }
  return escaped;
}

std::string base64(std::string_view bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (size_t k = 0; k < 4; ++k) text += k <= count ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::string number_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  if (std::abs(value) >= 1000 && std::abs(value) < 1e15)
    return (value < 0 ? "-" : "") + with_commas(std::llround(std::abs(value)));
  return fmt::format("{:.4g}", value);
}

}  // namespace dalle2
