// SPDX-License-Identifier: MIT
#include "model/layers.h"

#include "support/fixture.h"

namespace dalle2::test {
namespace {

// The variance is so small that eps decides the result: x / sqrt(var + eps).
at::Tensor norm_of_small(at::ScalarType dtype) {
  GainNormImpl norm({2});
  norm.to(dtype);
  return norm.forward(torch::tensor({-0.01, 0.01}).to(dtype)).to(at::kDouble);
}

TEST_CASE("norms use eps 1e-5 for float32 and 1e-3 for everything else") {
  CHECK(norm_of_small(at::kFloat)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-4)).epsilon(1e-4));
  CHECK(norm_of_small(at::kDouble)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-3)).epsilon(1e-4));
  // bfloat16 has 8 bits.
  CHECK(norm_of_small(at::kBFloat16)[1].item<double>() ==
        Approx(0.01 / std::sqrt(1.1e-3)).epsilon(1e-2));
}

TEST_CASE("a stable norm divides by the largest entry, sign included") {
  GainNormImpl norm({3}, {.by_max = true});
  const at::Tensor x = torch::tensor({-4.0F, -2.0F, -1.0F});
  // Divided by -1 the order turns round.
  expect_close(norm.forward(x), GainNormImpl({3}).forward(-x), 1e-6, "stable");
}

TEST_CASE("a norm of a feature map keeps its gain's shape in files") {
  GainNormImpl norm({1, 3, 1, 1});
  CHECK(norm.named_parameters()["g"].sizes() == at::IntArrayRef({1, 3, 1, 1}));
  CHECK(norm.forward(wave({2, 5, 3})).sizes() == at::IntArrayRef({2, 5, 3}));
}

TEST_CASE("parallel convolutions share the width: halves, quarters, the rest") {
  const auto widths = [](int64_t out, const std::vector<int64_t>& kernels) {
    std::vector<int64_t> found;
    for (const auto& item : CrossEmbedImpl(1, out, kernels, 1).named_parameters()) {
      if (item.key().ends_with(".bias")) found.push_back(item.value().size(0));
    }
    return found;
  };
  CHECK(widths(8, {3, 5, 7}) == std::vector<int64_t>{4, 2, 2});
  CHECK(widths(8, {3, 5}) == std::vector<int64_t>{4, 4});
  CHECK(widths(7, {3, 5, 7}) == std::vector<int64_t>{3, 1, 3});
  CHECK(widths(8, {3}) == std::vector<int64_t>{8});
  // The smallest kernel is the widest, in whatever order they are given.
  CrossEmbedImpl layer(3, 8, {15, 3, 7}, 1);
  CHECK(layer.named_parameters()["convs.0.weight"].sizes() == at::IntArrayRef({4, 3, 3, 3}));
  CHECK(layer.forward(wave({1, 3, 6, 4})).sizes() == at::IntArrayRef({1, 8, 6, 4}));
}

TEST_CASE("downsampling moves pixel squares into channels, channel slowest") {
  DownsampleImpl layer(2, 3);
  const at::Tensor x = wave({2, 2, 6, 4});
  const auto p = layer.named_parameters();
  const at::Tensor expected = at::conv2d(at::pixel_unshuffle(x, 2), p["1.weight"], p["1.bias"]);
  expect_close(layer.forward(x), expected, 1e-5, "downsample");
}

TEST_CASE("the time embedding holds sines and cosines from 1 down to 1 / 10000") {
  const at::Tensor e = sinusoidal_embedding(torch::tensor({0.0F, 2.0F}), 6);
  REQUIRE(e.sizes() == at::IntArrayRef({2, 6}));
  CHECK(at::equal(e[0], torch::tensor({0.0F, 0.0F, 0.0F, 1.0F, 1.0F, 1.0F})));
  CHECK(e[1][0].item<float>() == Approx(std::sin(2.0)));
  CHECK(e[1][1].item<float>() == Approx(std::sin(0.02)));
  CHECK(e[1][5].item<float>() == Approx(std::cos(0.0002)));
}

}  // namespace
}  // namespace dalle2::test
