// SPDX-License-Identifier: MIT
#include "dist/meeting.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
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

TEST_CASE("a rank that is stopped before all have met stops the others of its launcher") {
  const auto store = std::make_shared<StoreContents>();
  StoreDouble own(store);
  own.set(kStoppedKey, "1");
  for (const int rank : {0, 1}) {
    World world = rank_of(rank, 2);
    world.launcher = Launcher::kOurs;
    CHECK_THROWS_AS(meet(world, own, {.tell = 10s, .limit = 10s}), StoppedError);
  }
  CHECK_THAT(message_of(rank_of(0, 2), store),
             Catch::StartsWith("rank 1 of 2 has not met the others"));
}

/// Lets something happen after the first answer to a question for a key that begins so, before the rank
/// has it; all keys of the question have to be there if `is_complete`.
class InterruptedStore : public StoreDouble {
 public:
  InterruptedStore(std::shared_ptr<StoreContents> contents,
                   std::string prefix,
                   bool is_complete,
                   std::function<void()> meanwhile)
      : StoreDouble(std::move(contents)),
        prefix_(std::move(prefix)),
        is_complete_(is_complete),
        meanwhile_(std::move(meanwhile)) {}

  std::vector<std::optional<std::string>> get(const std::vector<std::string>& keys) override {
    auto texts = StoreDouble::get(keys);
    const auto is_asked_for = [&](const auto& key) { return key.starts_with(prefix_); };
    const bool is_it = std::any_of(keys.begin(), keys.end(), is_asked_for) &&
                       (!is_complete_ ||
                        std::all_of(texts.begin(), texts.end(), [](auto& text) { return !!text; }));
    if (is_it && meanwhile_) std::exchange(meanwhile_, nullptr)();
    return texts;
  }

 private:
  std::string prefix_;
  bool is_complete_;
  std::function<void()> meanwhile_;
};

World launched(int rank, int size) {
  World world = rank_of(rank, size);
  world.launcher = Launcher::kOurs;
  return world;
}

TEST_CASE("a rank that hears of a stop as the last comes goes with the others") {
  const auto store = std::make_shared<StoreContents>();
  auto first = std::async(std::launch::async, [&] {
    StoreDouble own(store);
    return meet(launched(0, 2), own);
  });
  // Rank 1 has seen no decision yet; the meeting comes about, and then the launcher tells of a stop.
  InterruptedStore own(store, "decision/", /*is_complete=*/false, [&] {
    first.wait();
    StoreDouble(store).set(kStoppedKey, "1");
  });
  const std::string name = meet(launched(1, 2), own);
  CHECK(name == first.get());
}

TEST_CASE("a rank that leaves as the last comes takes the others with it") {
  const auto store = std::make_shared<StoreContents>();
  std::promise<void> left;
  // Rank 0 sees that all have come, but rank 1 leaves before the first says so.
  auto first = std::async(std::launch::async, [&] {
    InterruptedStore own(store, "came/", /*is_complete=*/true, [&] {
      StoreDouble(store).set(kStoppedKey, "1");
      left.get_future().wait();
    });
    CHECK_THROWS_AS(meet(launched(0, 2), own), StoppedError);
  });
  StoreDouble own(store);
  CHECK_THROWS_AS(meet(launched(1, 2), own), StoppedError);
  left.set_value();
  first.get();
}

TEST_CASE("ranks that do not come are named") {
  const auto store = std::make_shared<StoreContents>();
  CHECK(message_of(rank_of(1, 4), store).find("rank 0 has not answered rank 1 in 0 s") == 0);
  CHECK(message_of(rank_of(0, 4), store).find("ranks 1, 2, 3 of 4 have not met the others in") ==
        0);
  auto other = std::async(std::launch::async, [&] { return message_of(rank_of(2, 3), store, 2s); });
  CHECK_THAT(message_of(rank_of(0, 3), store, 1s),
             Catch::StartsWith("rank 1 of 3 has not met the others in 1 s"));
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
             Catch::StartsWith("rank 1 met rank 0, but not all other ranks did in 1 s"));
  CHECK(first.get() != "");
}

}  // namespace
}  // namespace dalle2
