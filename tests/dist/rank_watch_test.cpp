// SPDX-License-Identifier: MIT
#include "dist/rank_watch.h"

#include <catch2/catch.hpp>
#include <future>

#include "base/this_process.h"
#include "store_double.h"
#include "work_double.h"

namespace dalle2 {
namespace {

using namespace std::chrono_literals;
using State = StoreContents::State;

World world_of(int rank) {
  World world;
  world.rank = rank;
  world.size = 2;
  world.store_host = "10.0.0.1";
  world.store_port = 29500;
  world.hosts_store = false;
  return world;
}

struct WatchedRank {
  WatchedRank(int rank, const std::shared_ptr<StoreContents>& store, std::chrono::seconds timeout)
      : watch(world_of(rank),
              std::make_unique<StoreDouble>(store),
              timeout,
              [this](const std::string& text) { told.set_value(text); }) {}

  std::string report_within(std::chrono::seconds limit) {
    return report.wait_for(limit) == std::future_status::ready ? report.get() : "(none)";
  }

  std::promise<std::string> told;  // outlives the watch
  std::future<std::string> report = told.get_future();
  RankWatch watch;
};

RankPlace posted_by(int rank, StoreContents& store) {
  const std::lock_guard lock(store.mutex);
  return RankPlace::from_json(store.values.at("place/" + std::to_string(rank)));
}

template <class Action>
void repeat_for(std::chrono::milliseconds time, const Action& action) {
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < time) {
    action();
    std::this_thread::sleep_for(10ms);
  }
}

TEST_CASE("a store that never answers does not keep a rank from telling that it waits in vain") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 4s);
  WatchedRank second(1, store, 4s);
  std::this_thread::sleep_for(1200ms);  // both have seen each other
  store->turn(State::kSilent);
  first.watch.begin("gradients");
  const std::string said = first.report_within(20s);
  CHECK(said.rfind("rank 0 waits in \"gradients\" (number 1, step 0) for", 0) == 0);
  CHECK(said.find("rank 1 has not been heard of for") != std::string::npos);
  CHECK(said.find("or the network is down") != std::string::npos);
  CHECK(
      said.find("the store through which the ranks meet (10.0.0.1:29500) does not answer either") !=
      std::string::npos);
  store->turn(State::kAnswers);
}

TEST_CASE("a store that is gone is named with its address") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s);
  store->turn(State::kGone);
  first.watch.begin("gradients");
  CHECK(first.report_within(20s) ==
        "rank 0 waits in \"gradients\", and the store through which the ranks meet does not answer "
        "(10.0.0.1:29500): the process that keeps it, that of rank 0 or its launcher, is gone");
}

TEST_CASE("why a rank ends is out when tell_failure returns, and another rank's report has it") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s);
  WatchedRank second(1, store, 60s);
  second.watch.tell_failure("shards/3.tar: damaged");
  CHECK(posted_by(1, *store).failure == "shards/3.tar: damaged");
  first.watch.begin("loss");
  const std::string said = first.report_within(20s);
  CHECK(said.rfind("rank 0 waits in \"loss\" (number 1, step 0) for", 0) == 0);
  CHECK(said.find("\n  rank 1 ended with an error: shards/3.tar: damaged") != std::string::npos);
}

TEST_CASE("others wait anew for a busy rank as often as it says that it goes on") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank busy(1, store, 60s);
  busy.watch.set_busy("drawing");
  std::this_thread::sleep_for(2500ms);
  CHECK(posted_by(1, *store).seconds >= 1.5);
  repeat_for(1500ms, [&] { busy.watch.still_busy(); });
  CHECK(posted_by(1, *store).seconds < 1);
}

TEST_CASE("a save that makes progress is not taken for a hang, one that does not is") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank saving(1, store, 60s);
  const std::string before = saving.watch.set_busy("saving");
  repeat_for(2500ms, sign_of_life);  // as each piece does that reaches the disk
  CHECK(posted_by(1, *store).seconds < 1);
  std::this_thread::sleep_for(2500ms);
  CHECK(posted_by(1, *store).seconds >= 1.5);
  // Of a rank that is not busy they say nothing: a thread of its own may be saving.
  saving.watch.set_busy(before);
  repeat_for(1000ms, sign_of_life);
  CHECK(posted_by(1, *store).seconds >= 2);
}

TEST_CASE("of collectives that wait in line the time is that since one of them ended") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank rank(1, store, 60s);
  const int64_t first = rank.watch.begin("gradients");
  rank.watch.begin("gradients");
  std::this_thread::sleep_for(2500ms);
  rank.watch.end(first);
  std::this_thread::sleep_for(700ms);  // a beat
  const RankPlace place = posted_by(1, *store);
  CHECK(place.waits);
  CHECK(place.sequence == first + 1);
  CHECK(place.seconds < 2);
}

TEST_CASE("ranks that start together hear of each other before the first beat") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 60s);
  first.watch.meet_all();
  store->turn(State::kSilent);
  const int64_t number = first.watch.begin("loss");
  CHECK_THAT(first.watch.explain("reset", number, "loss"),
             Catch::Contains("rank 1 has not been heard of for") &&
                 Catch::Contains("; it was behind \"start\""));
  store->turn(State::kAnswers);
}

TEST_CASE("what a finished collective holds is let go when the next begins") {
  WatchedRank rank(0, std::make_shared<StoreContents>(), 60s);
  auto work = std::make_shared<WorkDouble>();
  const std::weak_ptr<WorkDouble> held = work;
  rank.watch.launched(rank.watch.begin("gradients"), std::move(work));
  rank.watch.begin("loss");
  CHECK(held.expired());
}

TEST_CASE("a failure is put down to a rank that is in another operation") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 60s);
  const int64_t number = first.watch.begin("gradients");
  first.watch.launched(number, std::make_shared<WorkDouble>());  // as c10d says of a failed one
  first.watch.begin("gradients");                                // was on its way, too
  second.watch.begin("codes");
  CHECK_THAT(
      first.watch.explain("wrong length", number, "gradients"),
      Catch::StartsWith("rank 0: \"gradients\" failed (step 0):\n  rank 1 meets it in another "
                        "operation: in \"codes\" (number 1, step 0)"));
}

TEST_CASE("a collective that fails on a GPU is reported, though no host thread waits in it") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 60s);
  const auto work = std::make_shared<WorkDouble>(WorkStatus{});
  first.watch.set_step(7);
  first.watch.launched(first.watch.begin("gradients"), work);
  std::this_thread::sleep_for(1s);
  work->become(
      failed_with("NCCL error in: x.cpp:1, remote process exited, NCCL version 2.28\nabout\n"
                  "Last error:\n  socketProgress: Connection closed by remote peer\n"));
  CHECK(first.report_within(20s) ==
        "rank 0: \"gradients\" failed (step 7):\n  NCCL error in: x.cpp:1, remote process exited, "
        "NCCL version 2.28; socketProgress: Connection closed by remote peer");
}

TEST_CASE("a collective that fails for a rank that is gone names the rank") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 60s);
  first.watch.launched(first.watch.begin("gradients"),
                       std::make_shared<WorkDouble>(failed_with("NCCL error")));
  CHECK(first.watch.is_waiting());  // it asks: the failure is known before its cause
  second.watch.tell_failure("shards/3.tar: damaged");
  CHECK(first.report_within(20s) ==
        "rank 0: \"gradients\" failed (step 0):\n  rank 1 ended with an error: shards/3.tar: "
        "damaged");
}

TEST_CASE("the other ranks report the fault of a rank's GPU or network") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 60s);
  const std::string fault = GENERATE("CUDA error: uncorrectable ECC error encountered",
                                     "NCCL error: ibv_poll_cq: local adapter");
  CAPTURE(fault);
  first.watch.launched(first.watch.begin("gradients"),
                       std::make_shared<WorkDouble>(failed_with(fault + "\nSearch for `x' in y")));
  second.watch.launched(second.watch.begin("gradients"),
                        std::make_shared<WorkDouble>(WorkStatus{}));
  const std::string said = first.report_within(20s);
  CHECK(said == "rank 0: \"gradients\" failed (step 0):\n  " + fault);
  CHECK_THAT(second.report_within(20s), Catch::Contains("\n  rank 0 ended with an error: " + said));
}

TEST_CASE("a driver that does not answer stops neither beats nor the main thread") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 60s), second(1, store, 4s);
  const auto work = std::make_shared<WorkDouble>(WorkStatus{});
  work->stick(true);
  first.watch.launched(first.watch.begin("gradients"), work);
  while (work->asked == 0) std::this_thread::sleep_for(10ms);
  const auto begin = std::chrono::steady_clock::now();
  first.watch.set_step(1);
  first.watch.begin("loss");
  first.watch.end(2);
  CHECK(first.watch.is_waiting());
  CHECK(std::chrono::steady_clock::now() - begin < 1s);
  second.watch.launched(second.watch.begin("gradients"), work);
  CHECK(second.report_within(3s) == "(none)");  // half its limit would do for a rank that is silent
  work->stick(false);
}

TEST_CASE("a watch ends though the driver never answers, and says at once that it does") {
  const auto store = std::make_shared<StoreContents>();
  const auto work = std::make_shared<WorkDouble>(WorkStatus{});
  work->stick(true);
  const auto begin = std::chrono::steady_clock::now();
  {
    WatchedRank rank(1, store, 60s);
    rank.watch.launched(rank.watch.begin("gradients"), work);
    while (work->asked == 0) std::this_thread::sleep_for(10ms);
  }
  CHECK(posted_by(1, *store).ended);
  CHECK(std::chrono::steady_clock::now() - begin < 10s);
  work->stick(false);
}

TEST_CASE("connecting may take its own time where all ranks are in it") {
  const auto store = std::make_shared<StoreContents>();
  WatchedRank first(0, store, 6s), second(1, store, 6s);
  for (WatchedRank* rank : {&first, &second}) {
    rank->watch.launched(rank->watch.begin("connecting the GPUs", 300s),
                         std::make_shared<WorkDouble>(WorkStatus{}));
  }
  CHECK(first.report_within(13s) == "(none)");
}

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
