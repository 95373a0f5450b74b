// SPDX-License-Identifier: MIT
#include "dist/rank_board.h"

#include <catch2/catch.hpp>

#include "store_double.h"

namespace dalle2 {
namespace {

using namespace std::chrono_literals;
using State = StoreContents::State;

RankPlace place_at(int64_t beats, const std::string& what) {
  return {.beats = beats, .what = what};
}

TEST_CASE("what one rank posts another reads after its own post") {
  const auto store = std::make_shared<StoreContents>();
  RankBoard first(0, 2, std::make_unique<StoreDouble>(store));
  RankBoard second(1, 2, std::make_unique<StoreDouble>(store));
  CHECK_FALSE(second.read().places[0].has_value());
  first.post(place_at(1, "loss"));
  REQUIRE(first.wait_until_posted(10s));
  second.post(place_at(1, "stop"));
  REQUIRE(second.wait_until_posted(10s));
  REQUIRE(second.read().places[0].has_value());
  CHECK(second.read().places[0]->what == "loss");
  CHECK_FALSE(first.read().places[1].has_value());  // has not looked since
}

TEST_CASE("a rank is silent while its beats stay the same, and while the store is silent") {
  const auto store = std::make_shared<StoreContents>();
  RankBoard first(0, 2, std::make_unique<StoreDouble>(store));
  RankBoard second(1, 2, std::make_unique<StoreDouble>(store));
  const auto look = [&] {
    first.post(place_at(1, "loss"));
    first.wait_until_posted(100ms);
    return first.read().silent_seconds[1];
  };
  second.post(place_at(1, "stop"));
  REQUIRE(second.wait_until_posted(10s));
  CHECK(look() < 0.1);
  std::this_thread::sleep_for(200ms);
  CHECK(look() >= 0.2);
  second.post(place_at(2, "stop"));
  REQUIRE(second.wait_until_posted(10s));
  CHECK(look() < 0.1);
  store->turn(State::kSilent);
  second.post(place_at(3, "stop"));
  CHECK(look() >= 0.1);
  CHECK_FALSE(first.wait_until_posted(10ms));
  CHECK(first.read().store_error.empty());
  store->turn(State::kAnswers);
  CHECK(first.wait_until_posted(10s));
}

TEST_CASE("a store that is gone is told, and heard of again when it is back") {
  const auto store = std::make_shared<StoreContents>();
  RankBoard board(0, 2, std::make_unique<StoreDouble>(store));
  store->turn(State::kGone);
  board.post(place_at(1, "loss"));
  REQUIRE(board.wait_until_posted(10s));
  CHECK(board.read().store_error == "broken pipe");
  store->turn(State::kAnswers);
  board.post(place_at(2, "loss"));
  REQUIRE(board.wait_until_posted(10s));
  CHECK(board.read().store_error.empty());
}

TEST_CASE("a board ends though the store holds its thread for ever") {
  const auto store = std::make_shared<StoreContents>();
  store->turn(State::kSilent);
  const auto begin = std::chrono::steady_clock::now();
  {
    RankBoard board(0, 2, std::make_unique<StoreDouble>(store));
    board.post(place_at(1, "loss"));
  }
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
  store->turn(State::kAnswers);  // and the thread goes its way
}

TEST_CASE("the last post goes out before a board ends") {
  const auto store = std::make_shared<StoreContents>();
  RankBoard(0, 2, std::make_unique<StoreDouble>(store)).post(place_at(7, "end"));
  CHECK(RankPlace::from_json(store->values.at("place/0")).beats == 7);
}

}  // namespace
}  // namespace dalle2
