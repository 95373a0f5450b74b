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

std::string number_text(double value) {
  if (!std::isfinite(value)) return "not finite";
  if (std::abs(value) >= 1000 && std::abs(value) < 1e15)
    return (value < 0 ? "-" : "") + with_commas(std::llround(std::abs(value)));
  return fmt::format("{:.4g}", value);
}

}  // namespace dalle2
