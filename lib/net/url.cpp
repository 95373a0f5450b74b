// SPDX-License-Identifier: MIT
#include "net/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

namespace dalle2 {

std::string uri_encode(std::string_view text, bool keep_slash) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  std::string encoded;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos || (keep_slash && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string uri_decode(const std::string& text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    const char lower = static_cast<char>(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    if (coded) {
      decoded += static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2]));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

std::string without_entities(std::string_view text) {
  constexpr std::pair<std::string_view, char> kEntities[] = {
      {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&amp;", '&'}};
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const auto* const entity =
        std::find_if(std::begin(kEntities), std::end(kEntities), [&](const auto& known) {
          return rest.starts_with(known.first);
        });
    const bool found = entity != std::end(kEntities);
    plain += found ? entity->second : rest[0];
    at += found ? entity->first.size() : 1;
  }
  return plain;
}

}  // namespace dalle2
