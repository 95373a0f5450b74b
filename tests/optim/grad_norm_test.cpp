// SPDX-License-Identifier: MIT
#include "optim/grad_norm.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "support/fixture.h"

namespace dalle2 {
namespace {

TEST_CASE("the norm of many small values keeps its digits") {
  const at::Tensor flat = test::wave({1 << 22}, 0.37, 0.0, 1e-3);
  const double expected = flat.to(at::kDouble).norm().item<double>();
  // Two levels of float32 sums over rows of 1024.
  CHECK(grad_norm(flat).item<double>() == Approx(expected).epsilon(1e-6));
}

TEST_CASE("gradients above the limit are divided down to it and others stay") {
  const at::Tensor flat = at::full({1024}, 0.5F);  // norm 16
  const at::Tensor norm = grad_norm(flat);
  CHECK(norm.item<double>() == Approx(16.0));
  CHECK(flat.div(clip_divisor(norm, 2.0)).norm().item<double>() == Approx(2.0).epsilon(1e-6));
  CHECK(clip_divisor(norm, 100.0).item<double>() == 1.0);
}

TEST_CASE("the divisor is the reciprocal of torch's clip coefficient") {
  for (const double max_norm : {0.1, 0.5, 7.0}) {
    const double norm = 3.25;
    const double coefficient = std::min(1.0, max_norm / (norm + 1e-6));
    CHECK(clip_divisor(at::full({}, norm, at::kFloat), max_norm).item<double>() ==
          Approx(1.0 / coefficient).epsilon(1e-6));
  }
}

TEST_CASE("a NaN among the gradients shows in the norm") {
  at::Tensor flat = at::ones({1024});
  flat[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(grad_norm(flat).item<double>()));
}

}  // namespace
}  // namespace dalle2
