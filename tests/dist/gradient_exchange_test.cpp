// SPDX-License-Identifier: MIT
#include "dist/gradient_exchange.h"

#include <torch/torch.h>
#include <torch/types.h>
#include <catch2/catch.hpp>

#include "base/this_process.h"
#include "dist/process_group.h"
#include "dist/rank_watch.h"
#include "dist/ranks_in_threads.h"
#include "work_double.h"

namespace dalle2::test {
namespace {

using namespace std::chrono_literals;

/// Four entries of 16 numbers; a bucket takes two.
std::vector<ExchangeEntry> four_entries() {
  return {{0, 16, true}, {16, 16, true}, {32, 16, true}, {48, 16, true}};
}
constexpr int64_t kTwoEntries = 4 * 32;

void run_pass(GradientExchange& exchange, const std::vector<size_t>& order) {
  exchange.begin();
  for (const size_t entry : order) exchange.ready(entry);
  exchange.finish();
}

TEST_CASE("the gradients of all ranks are added up, whatever arrived where and in which order") {
  std::atomic<int> right = 0;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor flat = torch::zeros({64});
    GradientExchange exchange(group, flat, four_entries(), {.bucket_bytes = kTwoEntries}, "unet 0");
    for (int update = 0; update < 3; ++update) {
      flat.zero_();
      exchange.begin();
      // Rank 1 goes through its layers in another order, and never reaches the first.
      const std::vector<size_t> order =
          group.is_main() ? std::vector<size_t>{3, 2, 1, 0} : std::vector<size_t>{1, 2, 3};
      for (const size_t entry : order) {
        flat.slice(0, 16 * static_cast<int64_t>(entry), 16 * static_cast<int64_t>(entry) + 16)
            .fill_(static_cast<float>(group.rank() + 1));
        exchange.ready(entry);
      }
      exchange.finish();
      at::Tensor expected = torch::full({64}, 3.0F);
      expected.slice(0, 0, 16).fill_(1.0F);
      if (flat.equal(expected)) ++right;
    }
  });
  CHECK(right == 6);
}

TEST_CASE("from the second update on slices are on their way before the backward pass is through") {
  std::atomic<int> right = 0;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor flat = torch::ones({64});
    GradientExchange exchange(group, flat, four_entries(), {.bucket_bytes = kTwoEntries}, "");
    std::vector<size_t> overlapped;
    for (int update = 0; update < 3; ++update) {
      run_pass(exchange, {3, 2, 1, 0});
      overlapped.push_back(exchange.overlapped());
    }
    const size_t buckets = exchange.num_buckets();
    if (buckets > 1 && overlapped == std::vector<size_t>{0, buckets, buckets}) ++right;
  });
  CHECK(right == 2);
}

TEST_CASE("the order is that of a pass that was announced, not that of one that was not") {
  std::atomic<int> right = 0;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor flat = torch::ones({64});
    GradientExchange exchange(group, flat, four_entries(), {.bucket_bytes = kTwoEntries}, "");
    exchange.finish();  // an update for which this rank had no batch
    run_pass(exchange, {0, 1, 2, 3});
    exchange.begin();
    for (const size_t entry : {0, 1}) exchange.ready(entry);
    if (exchange.overlapped() == 1) ++right;  // the slice with 0 and 1 does not wait for the other
    for (const size_t entry : {2, 3}) exchange.ready(entry);
    exchange.finish();
  });
  CHECK(right == 2);
}

TEST_CASE("nothing is sent before the last pass of an update") {
  std::atomic<int> right = 0;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor flat = torch::ones({64});
    GradientExchange exchange(group, flat, four_entries(), {.bucket_bytes = kTwoEntries}, "");
    run_pass(exchange, {3, 2, 1, 0});  // the order is agreed on now
    flat.fill_(1.0F);
    for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
    flat.fill_(5.0F);  // what a later pass added
    run_pass(exchange, {3, 2, 1, 0});
    if (flat.equal(torch::full({64}, 10.0F))) ++right;
  });
  CHECK(right == 2);
}

TEST_CASE("a rank that owns a slice gets the sums of that, wherever the slices are cut") {
  for (const bool in_bfloat16 : {false, true}) {
    std::atomic<int> right = 0;
    test::as_ranks(3, [&](ProcessGroup& group) {
      const at::Tensor flat = torch::zeros({64});
      // The first ends within the first bucket, the second is empty.
      const std::vector<int64_t> ends = {24, 24, 64};
      GradientExchange exchange(
          group,
          flat,
          four_entries(),
          {.bucket_bytes = kTwoEntries, .in_bfloat16 = in_bfloat16, .owner_ends = ends},
          "");
      for (int update = 0; update < 3; ++update) {
        flat.copy_(torch::arange(64, at::kFloat) * (group.rank() + 1));
        run_pass(exchange, {3, 2, 1, 0});
        const auto rank = static_cast<size_t>(group.rank());
        const int64_t begin = rank == 0 ? 0 : ends[rank - 1];
        const at::Tensor own = flat.slice(0, begin, ends[rank]);
        const at::Tensor expected = torch::arange(begin, ends[rank], at::kFloat) * 6;
        if (in_bfloat16 ? at::allclose(own, expected, 1.0 / 128) : own.equal(expected)) ++right;
      }
    });
    CHECK(right == 9);
  }
}

TEST_CASE("sums in bfloat16 keep eight bits") {
  std::atomic<int> right = 0;
  test::as_ranks(2, [&](ProcessGroup& group) {
    const at::Tensor flat = torch::full({64}, 1.001F);
    GradientExchange exchange(
        group, flat, four_entries(), {.bucket_bytes = kTwoEntries, .in_bfloat16 = true}, "");
    exchange.finish();
    if (flat.equal(torch::full({64}, 2.0F))) ++right;
  });
  CHECK(right == 2);
}

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

TEST_CASE("work that is being launched is not asked, and work that was ended not waited for") {
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

/// Other rows on each rank, none on rank 1.
at::Tensor rows_of(int rank, int64_t width) {
  if (rank == 1) return torch::zeros({0, 0});
  return torch::arange((rank + 1) * 3 * width, at::kFloat).view({(rank + 1) * 3, width}) + rank;
}

TEST_CASE("rows of all ranks arrive on rank 0 alone, however many each has") {
  std::atomic<int> right = 0;
  as_ranks(3, [&](ProcessGroup& group) {
    const std::vector<at::Tensor> found = gather_rows(group, rows_of(group.rank(), 5), "features");
    if (!group.is_main()) {
      if (found.empty()) ++right;
      return;
    }
    if (found.size() == 3 && found[0].equal(rows_of(0, 5)) && found[1].size(0) == 0 &&
        found[2].equal(rows_of(2, 5))) {
      ++right;
    }
  });
  CHECK(right == 3);
}

TEST_CASE("large rows come in pieces, each of which is a sign of life") {
  constexpr int64_t kWidth = 500'000;  // 18 MB of rank 2, in pieces of a third of 32 MiB
  std::atomic<int> right = 0;
  const uint64_t before = signs_of_life();
  as_ranks(3, [&](ProcessGroup& group) {
    const auto found = gather_rows(group, rows_of(group.rank(), kWidth), "features");
    if (!group.is_main() ||
        (found[0].equal(rows_of(0, kWidth)) && found[2].equal(rows_of(2, kWidth)))) {
      ++right;
    }
  });
  CHECK(right == 3);
  CHECK(signs_of_life() - before >= 3 * 2);
}

TEST_CASE("nobody has rows, or there is one process: nothing is sent") {
  std::atomic<int> right = 0;
  as_ranks(2, [&](ProcessGroup& group) {
    const auto found = gather_rows(group, torch::zeros({0, 0}), "features");
    if (found.size() == (group.is_main() ? 2U : 0U)) ++right;
  });
  CHECK(right == 2);
  ProcessGroup alone;
  CHECK(gather_rows(alone, torch::ones({2, 2}), "features").at(0).equal(torch::ones({2, 2})));
}

}  // namespace
}  // namespace dalle2::test
