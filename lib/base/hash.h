// SPDX-License-Identifier: MIT
// Hashes that are the same on every machine, which std::hash is not.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dalle2 {

/// FNV-1a of 32 or 64 bits.
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

inline constexpr uint64_t kGoldenGamma =
    0x9e3779b97f4a7c15ULL;  ///< from one SplitMix64 state to the next

/// The output of a SplitMix64 state (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
/// generators"): each bit of `z` changes every bit.
constexpr uint64_t split_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace dalle2
