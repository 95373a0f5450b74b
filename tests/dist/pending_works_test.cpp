// SPDX-License-Identifier: MIT
#include "dist/rank_watch.h"

#include <catch2/catch.hpp>
#include <thread>

#include "work_double.h"

namespace dalle2 {
namespace {

using namespace std::chrono_literals;

const WorkStatus kDone{.state = WorkState::kDone};

TEST_CASE("works are released in their order: one that is done waits for those before it") {
  PendingWorks works;
  const auto first = std::make_shared<WorkDouble>(WorkStatus{});
  auto second = std::make_shared<WorkDouble>(kDone);
  const std::weak_ptr<WorkDouble> held = second;
  works.launched(works.begin("gradients", 0s), first);
  works.launched(works.begin("loss", 300s), std::move(second));
  works.poll();
  CHECK_FALSE(held.expired());
  CHECK(works.place().waits);
  CHECK(works.place().sequence == 1);
  CHECK(works.place().what == "gradients");
  CHECK(works.place().limit == 0);
  first->become(kDone);
  works.poll();
  CHECK(held.expired());
  CHECK_FALSE(works.place().waits);
  CHECK(works.place().sequence == 2);
  CHECK(works.place().what == "loss");
}

TEST_CASE("a work that failed keeps its place and its reason, whatever ends behind it") {
  PendingWorks works;
  works.launched(works.begin("gradients", 0s), std::make_shared<WorkDouble>(failed_with("reset")));
  CHECK_FALSE(works.failed());
  works.poll();
  works.launched(works.begin("loss", 0s), std::make_shared<WorkDouble>(kDone));
  works.poll();
  REQUIRE(works.failed());
  CHECK(works.failed()->number == 1);
  CHECK(works.failed()->what == "gradients");
  CHECK(works.failed()->reason == "reset");
  CHECK(works.place().sequence == 1);
}

TEST_CASE(
    "one that is still being launched is not asked, and one that was ended is not waited for") {
  PendingWorks works;
  const int64_t number = works.begin("connecting", 0s);
  works.poll();
  CHECK(works.place().waits);
  works.end(number);
  CHECK_FALSE(works.place().waits);
}

TEST_CASE("a work that is ended while it is asked fails nobody") {
  PendingWorks works;
  const auto work = std::make_shared<WorkDouble>(failed_with("reset"));
  work->stick(true);
  const int64_t number = works.begin("gradients", 0s);
  works.launched(number, work);
  std::thread poller([&] { works.poll(); });
  while (work->asked == 0) std::this_thread::sleep_for(1ms);
  works.end(number);
  work->stick(false);
  poller.join();
  CHECK_FALSE(works.failed());
  CHECK_FALSE(works.place().waits);
}

}  // namespace
}  // namespace dalle2
