// SPDX-License-Identifier: MIT
// SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators").
#pragma once

#include <cstdint>

namespace dalle2 {

inline constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;  ///< from one state to the next

/// The output of a state: all bits of `z` in all bits.
constexpr uint64_t split_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace dalle2
