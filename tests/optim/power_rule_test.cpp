// SPDX-License-Identifier: MIT
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "base/error.h"
#include "checkpoint/post_hoc.h"
#include "optim/average_rule.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

/// A rule and what it makes.
struct PowerAverage {
  PowerAverage(double sigma, const at::Tensor& weights)
      : gamma(gamma_of_sigma(sigma)), rule(gamma), values(weights.clone()) {}
  double gamma;
  PowerRule rule;
  at::Tensor values;
};

PowerProfile profile(int64_t step, double sigma) {
  return {step, gamma_of_sigma(sigma)};
}

TEST_CASE("exponents of widths are ema_pytorch's") {
  const test::Fixture fixture = test::load_fixture("power_ema/power_ema");
  for (const auto& pair : test::listed(fixture, "gammas", 10)) {
    // The reference takes roots of a cubic, whose coefficients grow with 1 / sigma^2.
    CHECK(gamma_of_sigma(pair[0].get<double>()) == Approx(pair[1].get<double>()).epsilon(1e-9));
  }
  CHECK(gamma_of_sigma(0.05) == Approx(16.97).epsilon(1e-3));  // as the paper has them
  CHECK(gamma_of_sigma(0.10) == Approx(6.94).epsilon(1e-3));
  for (const double sigma : {0.0, -0.1, 0.29, std::nan("")}) {
    CHECK_THROWS_AS(gamma_of_sigma(sigma), ConfigError);
  }
}

TEST_CASE("an average follows the weights as ema_pytorch's does") {
  const test::Fixture fixture = test::load_fixture("power_ema/power_ema");
  const at::Tensor weights = fixture.tensor("weights"), averages = fixture.tensor("averages");
  PowerRule rule(gamma_of_sigma(fixture.json.at("sigma").get<double>()));
  const at::Tensor average = at::zeros({weights.size(1)});
  for (int64_t step = 0; step < weights.size(0); ++step) {
    rule.update(average, weights[step]);
    rule.count();
    CHECK(rule.step() == step + 1);
    // One rounding a step of numbers around 1.
    CHECK(at::allclose(average, averages[step], 0, 2e-6));
  }
}

TEST_CASE("the weights of a combination are ema_pytorch's") {
  const test::Fixture fixture = test::load_fixture("power_ema/power_ema");
  for (const auto& one : test::listed(fixture, "combinations", 6)) {
    const auto steps = one.at("steps").get<std::vector<int64_t>>();
    const auto gammas = one.at("gammas").get<std::vector<double>>();
    std::vector<PowerProfile> snapshots;
    for (size_t i = 0; i < steps.size(); ++i) snapshots.push_back({steps[i], gammas[i]});
    const PostHocWeights ours = post_hoc_weights(
        snapshots, profile(one.at("step").get<int64_t>(), one.at("sigma").get<double>()));
    const auto expected = one.at("weights").get<std::vector<double>>();
    REQUIRE(ours.weights.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      // Profiles of neighbours are nearly parallel: the solution has about half of a double's
      // digits.
      CHECK(ours.weights[i] == Approx(expected[i]).margin(1e-6));
    }
    CHECK(ours.missed < 1.0);
  }
}

TEST_CASE("a saved average is itself, and one between two is made of both") {
  std::vector<PowerProfile> snapshots;
  for (int64_t step = 500; step <= 4000; step += 500) {
    for (const double sigma : {0.05, 0.1}) snapshots.push_back(profile(step, sigma));
  }
  const PostHocWeights same = post_hoc_weights(snapshots, profile(2000, 0.1));
  for (size_t i = 0; i < snapshots.size(); ++i) {
    CHECK(same.weights[i] == Approx(i == 7 ? 1.0 : 0.0).margin(1e-6));
  }
  CHECK(same.missed < 1e-6);

  // A walk of one number, averaged directly and by combination.
  at::Generator generator = at::detail::createCPUGenerator(7);
  const at::Tensor weight = at::zeros({1});
  PowerAverage narrow(0.05, weight), wide(0.1, weight), direct(0.08, weight);
  std::vector<PowerProfile> saved;
  std::vector<double> values;
  for (int64_t step = 1; step <= 4000; ++step) {
    weight.add_(at::randn({1}, generator));
    for (PowerAverage* average : {&narrow, &wide, &direct}) {
      average->rule.update(average->values, weight);
      average->rule.count();
    }
    if (step % 500 != 0) continue;
    for (const PowerAverage* average : {&narrow, &wide}) {
      saved.push_back({step, average->gamma});
      values.push_back(average->values[0].item<double>());
    }
  }
  const PostHocWeights made = post_hoc_weights(saved, {4000, direct.gamma});
  double combined = 0.0;
  for (size_t i = 0; i < values.size(); ++i) combined += made.weights[i] * values[i];
  const double expected = direct.values[0].item<double>();
  // On this walk the narrow and the wide average are much further apart.
  CHECK(std::abs(combined - expected) < 0.1 * std::abs(values[14] - values[15]));
  CHECK(made.missed < 0.02);
}

}  // namespace
}  // namespace dalle2
