// SPDX-License-Identifier: MIT
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dalle2 {

/// FNV-1a of a list of names, 32 bits: whether two lists are the same.
class NamesHash {
 public:
  void add(std::string_view name) {
    for (const char c : name) mix(c);
    mix('\n');
  }
  std::string hex() const { return fmt::format("{:08x}", hash_); }

 private:
  void mix(char c) {
    constexpr uint32_t kPrime = 16777619;
    hash_ = (hash_ ^ static_cast<unsigned char>(c)) * kPrime;
  }
  uint32_t hash_ = 2166136261;
};

}  // namespace dalle2
