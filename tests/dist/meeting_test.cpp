// SPDX-License-Identifier: MIT
#include "dist/meeting.h"

#include <catch2/catch.hpp>
#include <future>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/stop_signal.h"
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

std::string message_of(const World& world,
                       const std::shared_ptr<StoreContents>& store,
                       std::chrono::milliseconds limit = 50ms) {
  StoreDouble own(store);
  try {
    meet(world, own, {.tell = 10s, .limit = limit});
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

TEST_CASE(
    "a rank that is stopped before all have met stops the others, if one launcher started them") {
  const auto store = std::make_shared<StoreContents>();
  StoreDouble own(store);
  own.set(kStoppedKey, "1");
  for (const int rank : {0, 1}) {
    World world = rank_of(rank, 2);
    world.launcher = Launcher::kOurs;
    CHECK_THROWS_AS(meet(world, own, {.tell = 10s, .limit = 10s}), StoppedError);
  }
  CHECK_THAT(message_of(rank_of(0, 2), store), Catch::StartsWith("rank 1 of 2 has not come"));
}

TEST_CASE("ranks that do not come are named") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 4), store).find("rank 0 has not answered rank 1 in 0 s") == 0);
  CHECK(
      message_of(rank_of(0, 4), store).find("ranks 1, 2, 3 of 4 have not come to the others in") ==
      0);
  auto other = std::async(std::launch::async, [&] { return message_of(rank_of(2, 3), store, 2s); });
  CHECK_THAT(message_of(rank_of(0, 3), store, 1s),
             Catch::StartsWith("rank 1 of 3 has not come to the others in 1 s"));
  CHECK(other.get() != "");
}

TEST_CASE("an address where nothing listens is named, and waited for") {
  World world = rank_of(1, 2);
  world.store_host = "127.0.0.1";
  const auto fault_of = [&] {
    try {
      wait_for_store(world, {.tell = 10s, .limit = 50ms});
    } catch (const NetworkError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  {
    const StoreServer server;
    world.store_port = server.port();
    CHECK(fault_of() == "");
  }
  CHECK_THAT(
      fault_of(),
      Catch::Matches("rank 1 of 2 has not reached rank 0, or its launcher, at 127.0.0.1:[0-9]+ "
                     "\\(Connection refused\\) in 0 s\n[^]*"));
  world.store_host = "nowhere.invalid";
  world.store_host = "nowhere.invalid";
  CHECK_THAT(fault_of(), Catch::Contains(" at nowhere.invalid:"));
}

TEST_CASE("no rank goes on before the last has come") {
  const auto store = std::make_shared<StoreContents>();
  auto first = std::async(std::launch::async, [&] { return message_of(rank_of(0, 3), store, 2s); });
  CHECK_THAT(message_of(rank_of(1, 3), store, 1s),
             Catch::StartsWith("rank 1 met rank 0, but not all have come in 1 s"));
  CHECK(first.get() != "");
}

}  // namespace
}  // namespace dalle2
