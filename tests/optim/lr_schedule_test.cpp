// SPDX-License-Identifier: MIT
#include "optim/lr_schedule.h"

#include <catch2/catch.hpp>

#include "support/fixture.h"

namespace dalle2 {
namespace {

std::optional<int64_t> optional_int(const nlohmann::json& json) {
  return json.is_null() ? std::nullopt : std::optional<int64_t>(json.get<int64_t>());
}

TEST_CASE("the closed form gives the rates of torch's scheduler under pytorch_warmup") {
  const test::Fixture fixture = test::load_fixture("optim/lr");
  for (const nlohmann::json& sequence : fixture.json.at("sequences")) {
    INFO(sequence.dump().substr(0, 120));
    const double base = sequence.at("lr").get<double>();
    const LrSchedule schedule{base,
                              optional_int(sequence.at("warmup_steps")),
                              optional_int(sequence.at("cosine_decay_max_steps"))};
    int64_t step = 0;
    for (const double expected : sequence.at("rates").get<std::vector<double>>()) {
      INFO("step " << step);
      // torch multiplies the cosine up step by step: its doubles drift by some 1e-16 of the base a
      // step.
      CHECK(schedule.at(step++) == Approx(expected).epsilon(1e-9).margin(1e-12 * base));
    }
  }
}

TEST_CASE("warm-up of four steps gives a quarter, a half, three quarters and then all") {
  const LrSchedule schedule{1.0, 4};
  const std::vector<double> expected = {0.25, 0.5, 0.75, 1.0, 1.0};
  for (size_t k = 0; k < expected.size(); ++k) {
    CHECK(schedule.at(static_cast<int64_t>(k)) == expected[k]);
  }
}

TEST_CASE("cosine annealing rises again after its period") {
  const LrSchedule schedule{1.0, std::nullopt, 8};
  CHECK(schedule.at(8) == Approx(0.0).margin(1e-15));
  CHECK(schedule.at(16) == Approx(1.0));
  CHECK(schedule.at(4) == Approx(0.5));
}

TEST_CASE("a factor holds for every rate, annealed, warming up or constant") {
  for (const auto period : {std::optional<int64_t>(), std::optional<int64_t>(8)}) {
    LrSchedule schedule{2.0, 4, period};
    const LrSchedule plain = schedule;
    schedule.factor = 0.25;
    for (int64_t step = 0; step < 8; ++step) CHECK(schedule.at(step) == 0.25 * plain.at(step));
  }
}

}  // namespace
}  // namespace dalle2
