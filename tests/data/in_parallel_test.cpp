// SPDX-License-Identifier: MIT
#include "data/in_parallel.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace dalle2 {
namespace {

TEST_CASE("in_parallel does each piece of work once, on no more threads than asked for") {
  for (const int64_t threads : {0, 1, 3, 50}) {
    CAPTURE(threads);
    std::vector<std::atomic<int>> calls(40);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    in_parallel(calls.size(), threads, [&](size_t i) {
      ++calls[i];
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    for (const auto& count : calls) REQUIRE(count == 1);
    CHECK(std::ssize(seen) <= std::max<int64_t>(threads, 1));
  }
  in_parallel(0, 4, [](size_t) { FAIL("no work"); });
}

TEST_CASE("in_parallel works on several threads at the same time") {
  std::atomic<int> arrived = 0;
  std::atomic<bool> met = false;
  in_parallel(2, 2, [&](size_t) {
    ++arrived;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (arrived == 2) met = true;
  });
  CHECK(met);
}

TEST_CASE("in_parallel rethrows an error and begins no more work") {
  std::atomic<int> calls = 0;
  CHECK_THROWS_WITH(in_parallel(1000,
                                1,
                                [&](size_t i) {
                                  ++calls;
                                  if (i == 3) throw std::runtime_error("the fourth");
                                }),
                    "the fourth");
  CHECK(calls == 4);
  // Of several, the error of the first piece, even if another is faster.
  for (const int64_t threads : {1, 4}) {
    CHECK_THROWS_WITH(in_parallel(1000,
                                  threads,
                                  [](size_t i) {
                                    if (i == 0)
                                      std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                    throw std::runtime_error(std::to_string(i));
                                  }),
                      "0");
  }
}

}  // namespace
}  // namespace dalle2
