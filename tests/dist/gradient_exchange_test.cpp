// SPDX-License-Identifier: MIT
#include "dist/gradient_exchange.h"

#include <torch/torch.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "dist/ranks_in_threads.h"

namespace dalle2 {
namespace {

/// Four entries of 16 numbers; a bucket takes two.
std::vector<ExchangeEntry> four_entries() {
  return {{0, 16, true}, {16, 16, true}, {32, 16, true}, {48, 16, true}};
}
constexpr int64_t kTwoEntries = 4 * 32;

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
      exchange.begin();
      for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
      exchange.finish();
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
    exchange.begin();
    for (const size_t entry : {0, 1, 2, 3}) exchange.ready(entry);
    exchange.finish();
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
    exchange.begin();
    for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
    exchange.finish();  // the order is agreed on now
    flat.fill_(1.0F);
    for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
    flat.fill_(5.0F);  // what a later pass added
    exchange.begin();
    for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
    exchange.finish();
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
        exchange.begin();
        for (const size_t entry : {3, 2, 1, 0}) exchange.ready(entry);
        exchange.finish();
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

}  // namespace
}  // namespace dalle2
