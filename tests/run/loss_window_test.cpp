// SPDX-License-Identifier: MIT
#include "run/loop/run_position.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <cmath>

namespace dalle2 {
namespace {

LossWindow window_of(const std::vector<double>& losses) {
  LossWindow window(2, 10, at::kCPU);
  for (const double loss : losses) window.push(2, at::scalar_tensor(loss, at::kFloat));
  return window;
}

TEST_CASE("the mean is of the last ten losses of a part") {
  LossWindow window = window_of({100, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK(window.average(2).mean == 5.5);
  CHECK(window.average(2).left_out == 0);
  CHECK(std::isnan(window.average(1).mean));
}

TEST_CASE("losses that are not finite are counted and have no part in the mean") {
  const LossAverage average = window_of({1, NAN, 3, INFINITY}).average(2);
  CHECK(average.mean == 2);
  CHECK(average.left_out == 2);
  CHECK(std::isnan(window_of({NAN}).average(2).mean));
}

TEST_CASE("a sum of losses has the digits of a double, and each loss counts as often as it says") {
  LossSum sum;
  CHECK(sum.value() == 0);
  sum.add(at::scalar_tensor(0.1, at::kFloat), 3);
  sum.add(at::scalar_tensor(1e-9, at::kFloat));
  CHECK(sum.value() == 3 * double{0.1F} + double{1e-9F});
  sum.add(at::scalar_tensor(NAN, at::kFloat));
  CHECK(std::isnan(sum.value()));
}

TEST_CASE("losses go into a checkpoint and come back") {
  const Value saved = window_of({1, 2, 3}).state();
  LossWindow window = window_of({7});
  window.load(Cursor(saved));
  CHECK(window.average(2).mean == 2);
  CHECK(std::isnan(window.average(1).mean));
}

}  // namespace
}  // namespace dalle2
