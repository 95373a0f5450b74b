// SPDX-License-Identifier: MIT
#include "base/sign_of_life.h"

#include <atomic>

namespace dalle2 {
namespace {

std::atomic<uint64_t> signs{0};

}  // namespace

void sign_of_life() {
  signs.fetch_add(1, std::memory_order_relaxed);
}

uint64_t signs_of_life() {
  return signs.load(std::memory_order_relaxed);
}

}  // namespace dalle2
