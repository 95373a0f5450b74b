// SPDX-License-Identifier: MIT
#include "base/secret_words.h"

#include <algorithm>
#include <cctype>
#include <string_view>

namespace dalle2 {
namespace {

constexpr std::string_view kHidden = "...";

/// Letters and digits from `at` on, and what else a secret may hold.
size_t end_of_word(std::string_view text, size_t at, std::string_view others) {
  while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) != 0 ||
                              others.find(text[at]) != std::string_view::npos)) {
    ++at;
  }
  return at;
}

bool has_only(std::string_view word, std::string_view letters) {
  return word.find_first_not_of(letters) == std::string_view::npos;
}

constexpr std::string_view kDigits = "0123456789", kSmall = "abcdefghijklmnopqrstuvwxyz",
                           kLarge = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A word of letters, digits and '_'. @param is_name of a file or folder, as commits are in caches
bool is_token(std::string_view word, bool is_name) {
  constexpr size_t kLeast = 16, kKeyOfWandb = 40, kIdOfAws = 20;
  for (const std::string_view prefix : {"hf_", "wandb_v1_"}) {
    if (word.starts_with(prefix) && word.size() >= prefix.size() + kLeast) return true;
  }
  if (word.size() == kKeyOfWandb && has_only(word, "0123456789abcdefABCDEF")) return !is_name;
  return word.size() == kIdOfAws && (word.starts_with("AKIA") || word.starts_with("ASIA")) &&
         has_only(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789");
}

/// Base64 of 30 bytes; a path is not taken for it.
bool is_secret_of_aws(std::string_view word) {
  constexpr size_t kSize = 40;
  return word.size() == kSize && word[0] != '/' &&
         word.find_first_of("_.-~") == std::string_view::npos &&
         word.find_first_of(kDigits) != std::string_view::npos &&
         word.find_first_of(kSmall) != std::string_view::npos &&
         word.find_first_of(kLarge) != std::string_view::npos;
}

}  // namespace

std::string without_tokens(const std::string& text) {
  std::string shown;
  const std::string_view all = text;
  for (size_t at = 0, whole = 0; at < all.size();) {
    if (at >= whole) {
      whole = end_of_word(all, at, "_/+.-~");
      while (whole > at && all[whole - 1] == '.') --whole;  // of the sentence
      if (is_secret_of_aws(all.substr(at, whole - at))) {
        shown += kHidden;
        at = whole;
        continue;
      }
    }
    const size_t end = std::max(end_of_word(all, at, "_"), at + 1);
    const std::string_view word = all.substr(at, end - at);
    const bool is_name = (at > 0 && all[at - 1] == '/') || (end < all.size() && all[end] == '/');
    shown += is_token(word, is_name) ? kHidden : word;
    at = end;
  }
  return shown;
}

}  // namespace dalle2
