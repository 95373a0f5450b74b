// SPDX-License-Identifier: MIT
// Work that takes long and gets on: a save to a slow disk is not taken for a hang.
#pragma once

#include <atomic>
#include <cstdint>

namespace dalle2 {

/// How many pieces of such work were done in this process.
inline std::atomic<uint64_t> signs_of_life_so_far{0};

/// A piece of such work is done. Any thread, at any rate.
inline void sign_of_life() {
  signs_of_life_so_far.fetch_add(1, std::memory_order_relaxed);
}
inline uint64_t signs_of_life() {
  return signs_of_life_so_far.load(std::memory_order_relaxed);
}

}  // namespace dalle2
