// SPDX-License-Identifier: MIT
#include "model/clip/clip_encoder.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>

namespace dalle2::test {
namespace {

TEST_CASE("a way on the sphere turns at an even pace and ends where it is to") {
  const at::Tensor from = torch::tensor({{1.0F, 0.0F, 0.0F}});
  const at::Tensor to = torch::tensor({{0.0F, 3.0F, 0.0F}});
  CHECK(at::allclose(slerp(from, to, 0), from));
  CHECK(at::allclose(slerp(from, to, 1), to, 1e-5, 1e-6));
  for (const double share : {0.25, 0.5, 0.7}) {
    const at::Tensor between = slerp(from, to, share);
    CHECK(between.norm().item<double>() == Approx(1 + 2 * share));
    const double angle = std::atan2(between[0][1].item<double>(), between[0][0].item<double>());
    CHECK(angle == Approx(share * std::numbers::pi / 2));
  }
}

TEST_CASE("one embedding stands for all, and equal or opposite ones give no NaN") {
  const at::Tensor one = torch::tensor({{0.6F, 0.8F}});
  const at::Tensor many = torch::tensor({{0.6F, 0.8F}, {-0.6F, -0.8F}, {0.8F, -0.6F}});
  const at::Tensor halfway = slerp(one, many, 0.5);
  CHECK(halfway.sizes() == at::IntArrayRef{3, 2});
  CHECK(at::isfinite(halfway).all().item<bool>());
  CHECK(at::allclose(halfway[0], one[0]));
  CHECK(at::allclose(slerp(many, many, 0.3), many));
}

TEST_CASE("the difference of two texts has length 1, and none if they are the same") {
  const at::Tensor from = torch::tensor({{1.0F, 2.0F}}), to = torch::tensor({{4.0F, 6.0F}});
  CHECK(at::allclose(text_difference(from, to), torch::tensor({{0.6F, 0.8F}})));
  CHECK_FALSE(at::isfinite(text_difference(from, from)).any().item<bool>());
}

}  // namespace
}  // namespace dalle2::test
