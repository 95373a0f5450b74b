// SPDX-License-Identifier: MIT
#include "dist/gather_rows.h"

#include <torch/types.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "base/this_process.h"
#include "dist/ranks_in_threads.h"

namespace dalle2::test {
namespace {

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
