// SPDX-License-Identifier: MIT
#include "base/timer.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

namespace dalle2 {
namespace {

TEST_CASE("a timer counts seconds from its making and from each restart") {
  const auto begin = std::chrono::steady_clock::now();
  Timer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  const double first = timer.seconds();
  CHECK(first >= 0.03);
  timer.restart();
  const double second = timer.seconds();
  CHECK(second >= 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(timer.seconds() >= 0.03);
  const std::chrono::duration<double> whole = std::chrono::steady_clock::now() - begin;
  CHECK(first + timer.seconds() <= whole.count());
}

}  // namespace
}  // namespace dalle2
