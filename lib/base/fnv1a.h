// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dalle2 {

/// FNV-1a of 32 or 64 bits: a short hash that is the same on every machine (std::hash is not).
template <class Word>
class Fnv1a {
 public:
  Fnv1a() = default;
  explicit Fnv1a(std::string_view text) { add(text); }

  void mix(uint64_t unit) { value_ = (value_ ^ static_cast<Word>(unit)) * kPrime; }
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
  }
  void add_line(std::string_view text) {
    add(text);
    mix('\n');
  }
  Word value() const { return value_; }
  std::string hex() const { return fmt::format("{:0{}x}", value_, 2 * sizeof(Word)); }

 private:
  static constexpr bool kIsWide = sizeof(Word) == 8;
  static constexpr auto kPrime = static_cast<Word>(kIsWide ? 0x100000001b3ULL : 16777619ULL);
  Word value_ = static_cast<Word>(kIsWide ? 0xcbf29ce484222325ULL : 2166136261ULL);
};

}  // namespace dalle2
