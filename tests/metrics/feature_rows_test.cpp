// SPDX-License-Identifier: MIT
#include "metrics/feature_rows.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <catch2/catch.hpp>

#include "dist/ranks_in_threads.h"

namespace dalle2 {
namespace {

at::Tensor numbers(std::vector<int64_t> values) {
  return torch::tensor(values, at::kLong);
}

TEST_CASE("rows stand in the order of their images, each once, whatever they came by") {
  const at::Tensor all = torch::randn({7, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  FeatureRows whole;
  whole.add(torch::arange(7), all);
  FeatureRows rows;
  for (const auto& some : {numbers({5, 1}), numbers({3}), numbers({0, 6, 2, 4})}) {
    rows.add(some, all.index_select(0, some));
  }
  rows.add(numbers({4}), torch::zeros({1, 3}));  // comes a second time
  CHECK(rows.count() == 7);
  CHECK(at::equal(rows.rows(), whole.rows()));
  CHECK(at::equal(rows.index(), torch::arange(7)));
  rows.add(numbers({7}), torch::ones({1, 3}));  // after they were put in order
  CHECK(at::equal(rows.rows(), at::cat({all, torch::ones({1, 3})})));
}

TEST_CASE("rank 0 takes over the rows of all, one of which has none, and these keep nothing") {
  const at::Tensor all = torch::randn({7, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  std::atomic<int> right = 0;
  test::as_ranks(3, [&](ProcessGroup& group) {
    FeatureRows rows, nobodys;
    if (group.rank() == 0) rows.add(numbers({5, 1}), all.index_select(0, numbers({5, 1})));
    if (group.rank() == 2) {
      rows.add(numbers({0, 6, 2, 3, 4}), all.index_select(0, numbers({0, 6, 2, 3, 4})));
    }
    rows.gather(group, "features");
    nobodys.gather(group, "features of nobody");
    const bool is_right = group.is_main() ? at::equal(rows.rows(), all) : rows.count() == 0;
    if (is_right && nobodys.count() == 0) ++right;
  });
  CHECK(right == 3);
  CHECK(FeatureRows().count() == 0);
}

TEST_CASE("what is kept is not what the caller goes on to change") {
  FeatureRows rows;
  const at::Tensor features = torch::ones({2, 2});
  rows.add(numbers({0, 1}), features);
  features.zero_();
  CHECK(at::equal(rows.rows(), torch::ones({2, 2})));
}

}  // namespace
}  // namespace dalle2
