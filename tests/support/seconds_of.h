// SPDX-License-Identifier: MIT
// How long something takes.
#pragma once

#include <chrono>
#include <functional>

namespace dalle2::test {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace dalle2::test
