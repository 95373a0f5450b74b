// SPDX-License-Identifier: MIT
#include "metrics/feature_rows.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace dalle2 {
namespace {

at::Tensor numbers(std::vector<int64_t> values) {
  return torch::tensor(values, at::kLong);
}

TEST_CASE("rows stand in the order of their images, each once, whatever they came by") {
  const at::Tensor all = torch::randn({7, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  FeatureRows whole;
  whole.add(torch::arange(7), all, "real");
  FeatureRows first, second;
  first.add(numbers({5, 1}), all.index_select(0, numbers({5, 1})), "real");
  first.add(numbers({3}), all.index_select(0, numbers({3})), "real");
  second.add(numbers({0, 6, 2, 4}), all.index_select(0, numbers({0, 6, 2, 4})), "real");
  second.add(numbers({4}), torch::zeros({1, 3}), "real");  // comes a second time
  first.merge(second.state());
  CHECK(first.count() == 7);
  CHECK(at::equal(first.rows(), whole.rows()));
  CHECK(at::equal(first.index(), torch::arange(7)));
}

TEST_CASE("no rows at all have a state, too") {
  FeatureRows empty, full;
  full.add(numbers({2}), torch::ones({1, 4}), "real");
  full.merge(empty.state());
  empty.merge(full.state());
  CHECK(full.count() == 1);
  CHECK(at::equal(empty.rows(), torch::ones({1, 4})));
  CHECK(FeatureRows().count() == 0);
}

TEST_CASE("what is kept is not what the caller goes on to change") {
  FeatureRows rows;
  const at::Tensor features = torch::ones({2, 2});
  rows.add(numbers({0, 1}), features, "real");
  features.zero_();
  CHECK(at::equal(rows.rows(), torch::ones({2, 2})));
}

TEST_CASE("features that are not finite are an error that names the image") {
  at::Tensor features = torch::zeros({3, 2});
  features[1][0] = NAN;
  FeatureRows rows;
  CHECK_THROWS_WITH(rows.add(numbers({8, 9, 10}), features, "generated"),
                    "features of the generated image 9 are not finite (NaN or infinite)");
  CHECK(rows.count() == 0);
}

}  // namespace
}  // namespace dalle2
