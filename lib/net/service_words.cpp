// SPDX-License-Identifier: MIT
#include "net/service_words.h"

#include <algorithm>

namespace dalle2 {
namespace {

constexpr size_t kMostBytes = 200;
constexpr size_t kMostSearched = size_t{1} << 20;  ///< far more than is shown, whatever is replaced

void hide(std::string& text, const std::string& secret) {
  if (secret.empty()) return;
  for (size_t at = 0; (at = text.find(secret, at)) != std::string::npos;) {
    text.replace(at, secret.size(), "***");
    at += 3;
  }
}

/// Whether a byte is not the first of its character in UTF-8.
bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string service_words(std::string text, const std::vector<std::string>& secrets) {
  text.resize(std::min(text.size(), kMostSearched));
  for (const std::string& secret : secrets) hide(text, secret);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = ' ';
  }
  while (text.ends_with('.')) text.pop_back();
  if (text.size() <= kMostBytes) return text;
  size_t end = kMostBytes;
  while (end > 0 && continues_character(text[end])) --end;
  return text.substr(0, end) + " [...]";
}

}  // namespace dalle2
