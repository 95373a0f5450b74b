// SPDX-License-Identifier: MIT
#include "model/random.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <cstdlib>
#include <map>
#include <set>

namespace dalle2 {
namespace {

at::Tensor draw(const RandomAddress& address) {
  return at::randn({8}, make_generator(address, at::kCPU));
}

TEST_CASE("an address always gives the same numbers") {
  const RandomAddress address{7, "train", 3, 41, 1};
  CHECK(at::equal(draw(address), draw(address)));
}

TEST_CASE("every part of an address matters") {
  std::set<uint64_t> seen;
  for (const int64_t seed : {0, 1}) {
    for (const char* purpose : {"train", "sample"}) {
      for (const int64_t epoch : {0, 1}) {
        for (const int64_t step : {0, 1, 2}) {
          for (const int64_t rank : {0, 1}) {
            seen.insert(hash_address({seed, purpose, epoch, step, rank}));
          }
        }
      }
    }
  }
  CHECK(seen.size() == 48);
  CHECK_FALSE(at::equal(draw({0, "train", 0, 1, 0}), draw({0, "train", 1, 0, 0})));
}

TEST_CASE("addresses whose hashes differ only in the high half give other numbers") {
  // at::mt19937 takes only the low half in. By the birthday bound some pair of 200,000 shares it.
  std::map<uint32_t, int64_t> steps;
  int64_t pairs = 0;
  for (int64_t step = 0; step < 200'000; ++step) {
    const auto low = static_cast<uint32_t>(hash_address({0, "train", 0, step, 0}));
    const auto [other, is_new] = steps.emplace(low, step);
    if (is_new) continue;
    ++pairs;
    const RandomAddress a{0, "train", 0, step, 0}, b{0, "train", 0, other->second, 0};
    CHECK_FALSE(at::equal(draw(a), draw(b)));
  }
  CHECK(pairs > 0);
}

TEST_CASE("the numbers of an address are evenly spread and do not hang on its neighbours'") {
  at::Tensor sum = at::zeros({2000}), products = at::zeros({2000});
  at::Tensor before = at::zeros({2000});
  constexpr int64_t kSteps = 500;
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor drawn = at::randn({2000}, make_generator({0, "train", 0, step, 0}, at::kCPU));
    sum += drawn;
    products += drawn * before;
    before = drawn;
  }
  // Means of 1,000,000 normal numbers: five standard deviations.
  CHECK(std::abs(sum.mean().item<double>() / kSteps) < 5e-3);
  CHECK(std::abs(products.mean().item<double>() / kSteps) < 5e-3);
  // Of 2,000 means over the steps none is far out.
  CHECK((sum / std::sqrt(kSteps)).abs().max().item<double>() < 5);
}

TEST_CASE("deterministic mode refuses operations that have no such algorithm") {
  at::Context& context = at::globalContext();
  at::Tensor target = at::zeros({4});
  const auto put = [&] { target.put_(at::tensor({1, 2}, at::kLong), at::ones({2})); };
  CHECK_NOTHROW(put());
  search_for_algorithms();
  CHECK(context.benchmarkCuDNN());
  use_deterministic_algorithms();
  CHECK(context.deterministicAlgorithms());
  CHECK(context.deterministicCuDNN());
  CHECK_FALSE(context.benchmarkCuDNN());
  CHECK_FALSE(context.deterministicFillUninitializedMemory());
  CHECK(std::getenv("CUBLAS_WORKSPACE_CONFIG") != nullptr);
  CHECK_THROWS_WITH(put(), Catch::Contains("does not have a deterministic implementation"));
  context.setDeterministicAlgorithms(false, false);
  context.setDeterministicCuDNN(false);
}

}  // namespace
}  // namespace dalle2
