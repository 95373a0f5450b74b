// SPDX-License-Identifier: MIT
#include "dist/meeting.h"

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"
#include "store_double.h"

namespace dalle2 {
namespace {

using namespace std::chrono_literals;

World rank_of(int rank, int size) {
  World world;
  world.rank = rank;
  world.size = size;
  return world;
}

/// The names that each rank of a start got.
std::set<std::string> names_of_start(const std::shared_ptr<StoreContents>& store, int size) {
  std::vector<std::string> names(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        StoreDouble own(store);
        names[static_cast<size_t>(rank)] = meet(rank_of(rank, size), own);
      });
    }
  }
  return {names.begin(), names.end()};
}

std::string message_of(const World& world, const std::shared_ptr<StoreContents>& store) {
  StoreDouble own(store);
  try {
    meet(world, own, {.tell = 10s, .limit = 50ms});
  } catch (const NetworkError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("the ranks of a start get one name, and each start another") {
  const auto store = std::make_shared<StoreContents>();
  const auto first = names_of_start(store, 5), second = names_of_start(store, 5);
  CHECK(first.size() == 1);
  CHECK(second.size() == 1);
  CHECK(first != second);
}

TEST_CASE("what a start left that did not come about does not disturb the next") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 3), store) != "");  // left its number
  CHECK(message_of(rank_of(0, 3), store) != "");  // answered it
  CHECK(names_of_start(store, 3).size() == 1);
  CHECK(names_of_start(store, 2).size() == 1);  // fewer, after a machine was lost
}

TEST_CASE("ranks that do not come are named") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 4), store).find("rank 0 has not answered rank 1 in 0 s") == 0);
  CHECK(
      message_of(rank_of(0, 4), store).find("ranks 1, 2, 3 of 4 have not come to the others in") ==
      0);
  std::jthread other([&] {
    StoreDouble own(store);
    meet(rank_of(2, 3), own);
  });
  StoreDouble own(store);
  CHECK_THROWS_WITH(meet(rank_of(0, 3), own, {.tell = 10s, .limit = 1s}),
                    Catch::Contains("rank 1 of 3 has not come to the others in 1 s"));
}

}  // namespace
}  // namespace dalle2
