// SPDX-License-Identifier: MIT
#include "optim/random.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <cstdlib>
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

TEST_CASE(
    "the low halves of neighbouring addresses differ, which is all a CPU generator takes in") {
  std::set<uint32_t> low;
  for (int64_t step = 0; step < 1000; ++step) {
    low.insert(static_cast<uint32_t>(hash_address({0, "train", 0, step, 0})));
  }
  CHECK(low.size() == 1000);
}

TEST_CASE("deterministic mode refuses operations that have no such algorithm") {
  at::Context& context = at::globalContext();
  at::Tensor target = at::zeros({4});
  const auto put = [&] { target.put_(at::tensor({1, 2}, at::kLong), at::ones({2})); };
  CHECK_NOTHROW(put());
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
