// SPDX-License-Identifier: MIT
#include "optim/ema.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "flat_module.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

// The decay is a double here and a float32 in the reference: 1 - decay differs by up to 6e-8 of
// 0.04.
constexpr double kAverageTolerance = 2e-6;

struct AveragedModule : test::FlatModule {
  explicit AveragedModule(const test::Fixture& fixture)
      : FlatModule({{"weight", fixture.tensor("initial.weight")},
                    {"bias", fixture.tensor("initial.bias")}}) {
    register_buffer("running", fixture.tensor("initial.running").clone());
    register_buffer("count", fixture.tensor("initial.count").clone());
  }
  at::Tensor tensor(const std::string& name) {
    const auto found = named_buffers().find(name);
    return found ? *found : parameter(name);
  }
};

EmaOptions ema_options(const nlohmann::json& json) {
  EmaOptions options;
  options.beta = json.value("beta", options.beta);
  options.update_after_step = json.value("update_after_step", options.update_after_step);
  options.update_every = json.value("update_every", options.update_every);
  options.inv_gamma = json.value("inv_gamma", options.inv_gamma);
  options.power = json.value("power", options.power);
  options.min_value = json.value("min_value", options.min_value);
  if (json.contains("update_model_with_ema_every")) {
    options.update_model_with_ema_every = json.at("update_model_with_ema_every").get<int64_t>();
  }
  return options;
}

void replay_ema(const std::string& name) {
  const test::Fixture fixture = test::load_fixture("optim/" + name);
  AveragedModule online(fixture), average(fixture);
  const FlatParameters flat_online(online), flat_average(average);
  Ema ema(flat_online, flat_average, ema_options(fixture.json.at("options")));
  const int64_t calls = fixture.json.at("calls").get<int64_t>();
  for (int64_t call = 0; call < calls; ++call) {
    for (const auto& [tensor, value] : fixture.below(fmt::format("online.{}.", call))) {
      const torch::NoGradGuard no_grad;
      online.tensor(tensor).copy_(value);
    }
    ema.update();
    CHECK(ema.decay() ==
          Approx(fixture.json.at("decays")[static_cast<size_t>(call)].get<double>()).margin(1e-6));
    for (const auto& [tensor, expected] : fixture.below(fmt::format("average.{}.", call))) {
      test::expect_close(average.tensor(tensor),
                         expected,
                         kAverageTolerance,
                         fmt::format("{}: average of {} after call {}", name, tensor, call));
    }
    for (const auto& [tensor, expected] : fixture.below(fmt::format("online_after.{}.", call))) {
      test::expect_close(online.tensor(tensor),
                         expected,
                         kAverageTolerance,
                         fmt::format("{}: online {} after call {}", name, tensor, call));
    }
  }
  CHECK(ema.initted() == fixture.json.at("initted").get<bool>());
  CHECK(ema.step() == fixture.json.at("step").get<int64_t>());
}

TEST_CASE("the average follows ema_pytorch, parameters and floating buffers") {
  replay_ema("ema_after_3_every_2");
}
TEST_CASE("the average follows ema_pytorch when it is updated at every step") {
  replay_ema("ema_after_0_every_1");
}
TEST_CASE("the average follows ema_pytorch with its defaults") {
  replay_ema("ema_defaults");
}
TEST_CASE("a beta of one freezes the average after its copies") {
  replay_ema("ema_frozen");
}
TEST_CASE("gamma, power and the smallest decay shape the average") {
  replay_ema("ema_shape");
}
TEST_CASE("the online weights become the average every so many calls") {
  replay_ema("ema_copy_back");
}

struct Scalar {
  Scalar() : online({{"value", at::zeros({1})}}), average({{"value", at::zeros({1})}}) {}
  test::FlatModule online, average;
  FlatParameters flat_online{online}, flat_average{average};
  double update(Ema& ema, double value) {
    const torch::NoGradGuard no_grad;
    online.parameter("value").fill_(value);
    ema.update();
    return average.parameter("value").item<double>();
  }
};

TEST_CASE("averages and decays of the example in the documentation") {
  Scalar scalar;
  EmaOptions options;
  options.beta = 0.99;
  options.update_after_step = 3;
  options.update_every = 2;
  Ema ema(scalar.flat_online, scalar.flat_average, options);
  const std::vector<double> averages = {1, 1, 3, 3, 4.2599, 4.2599, 5.3473};
  const std::vector<double> decays = {0, 0, 0, 0, 0.37, 0.5193, 0.6031};
  for (size_t call = 0; call < averages.size(); ++call) {
    INFO("call " << call + 1);
    CHECK(scalar.update(ema, static_cast<double>(call + 1)) == Approx(averages[call]).margin(5e-5));
    CHECK(ema.decay() == Approx(decays[call]).margin(5e-5));
  }
}

TEST_CASE("the decay never exceeds beta") {
  Scalar scalar;
  EmaOptions options;
  options.beta = 0.5;
  options.update_after_step = 0;
  Ema ema(scalar.flat_online, scalar.flat_average, options);
  ema.set_counters(true, 1000000);
  CHECK(ema.decay() == 0.5);
}

TEST_CASE("counters of a checkpoint continue the sequence") {
  Scalar one, two;
  EmaOptions options;
  options.update_after_step = 1;
  options.update_every = 2;
  Ema first(one.flat_online, one.flat_average, options),
      second(two.flat_online, two.flat_average, options);
  for (int call = 0; call < 5; ++call) {
    one.update(first, call);
  }
  {
    const torch::NoGradGuard no_grad;
    two.flat_average.values().copy_(one.flat_average.values());
  }
  second.set_counters(first.initted(), first.step());
  for (int call = 5; call < 9; ++call) {
    CHECK(one.update(first, call) == two.update(second, call));
  }
}

TEST_CASE("defaults are those of ema_pytorch") {
  const EmaOptions options;
  CHECK(options.beta == 0.9999);
  CHECK(options.update_after_step == 100);
  CHECK(options.update_every == 10);
}

TEST_CASE("options of the average out of range are refused by name") {
  Scalar scalar;
  const auto refused = [&](auto change, const std::string& name) {
    EmaOptions options;
    change(options);
    CHECK_THROWS_WITH(Ema(scalar.flat_online, scalar.flat_average, options), Catch::Contains(name));
  };
  refused([](EmaOptions& o) { o.beta = 1.5; }, "ema_beta");
  refused([](EmaOptions& o) { o.update_every = 0; }, "ema_update_every");
  refused([](EmaOptions& o) { o.update_after_step = -1; }, "ema_update_after_step");
  refused([](EmaOptions& o) { o.inv_gamma = 0; }, "ema_inv_gamma");
  refused([](EmaOptions& o) { o.min_value = 2; }, "ema_min_value");
  refused([](EmaOptions& o) { o.update_model_with_ema_every = 0; }, "update_model_with_ema_every");
  refused([](EmaOptions& o) { o.beta = -0.1; }, "ema_beta");
  refused([](EmaOptions& o) { o.min_value = -0.1; }, "ema_min_value");
  const auto taken = [&](auto change) {
    EmaOptions options;
    change(options);
    CHECK_NOTHROW(Ema(scalar.flat_online, scalar.flat_average, options));
  };
  for (const double edge : {0.0, 1.0}) {
    taken([&](EmaOptions& o) { o.beta = edge; });
    taken([&](EmaOptions& o) { o.min_value = edge; });
  }
  taken([](EmaOptions& o) { o.update_every = 1; });
  taken([](EmaOptions& o) { o.update_after_step = 0; });
  taken([](EmaOptions& o) { o.update_model_with_ema_every = 1; });
}

}  // namespace
}  // namespace dalle2
