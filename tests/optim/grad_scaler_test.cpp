// SPDX-License-Identifier: MIT
#include "optim/precision.h"

#include <catch2/catch.hpp>

#include "flat_module.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

using test::kTrajectoryTolerance;

at::Tensor flag(bool value) {
  return at::full({}, value ? 1.0 : 0.0, at::kFloat);
}

TEST_CASE("scale, growth and skipped updates follow torch.amp.GradScaler", "[parity]") {
  const test::Fixture fixture = test::load_fixture("precision/scaler");
  const nlohmann::json& json = fixture.json;
  StateDict initial;
  for (const auto& name : json.at("names"))
    initial.emplace_back(name, fixture.tensor("initial." + name.get<std::string>()));
  test::FlatModule module(initial);
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  OptimizerOptions options;
  options.group_wd_params = false;
  Optimizer optimizer(flat, options);
  GradScalerOptions scaling;
  scaling.init_scale = json.at("init_scale").get<double>();
  scaling.growth_interval = json.at("growth_interval").get<int64_t>();
  GradScaler scaler(at::kCPU, scaling);

  int64_t skipped = 0;
  for (size_t step = 0; step < json.at("log").size(); ++step) {
    INFO("step " << step);
    const nlohmann::json& expected = json.at("log")[step];
    gradients.zero_grad();
    module.backward(fixture.below(fmt::format("grad.{}.", step)));
    const at::Tensor norm = grad_norm(gradients.values()) / scaler.scale();
    const at::Tensor found_inf = norm.isfinite().logical_not().to(at::kFloat);
    REQUIRE((found_inf.item<float>() == 1.0F) == expected.at("found_inf").get<bool>());
    optimizer.step(gradients,
                   json.at("lr").get<double>(),
                   clip_divisor(norm, json.at("max_norm").get<double>()) * scaler.scale(),
                   found_inf);
    if (expected.at("found_inf").get<bool>()) {
      ++skipped;
    } else {
      optimizer.count_update();
    }
    scaler.update(found_inf);
    CHECK(scaler.current_scale() == expected.at("scale").get<double>());
    CHECK(scaler.growth_tracker() == expected.at("tracker").get<int64_t>());
    for (size_t i = 0; i < flat.parameters().size(); ++i) {
      const std::string& name = flat.parameters()[i].name;
      const std::optional<ParameterState> state = optimizer.state(i);
      CHECK((state ? state->step : 0) == expected.at("steps").at(name).get<int64_t>());
      test::expect_close(flat.parameters()[i].tensor,
                         fixture.tensor(fmt::format("after.{}.{}", step, name)),
                         kTrajectoryTolerance,
                         name);
    }
  }
  CHECK(skipped > 3);
}

TEST_CASE("a new scaler has torch's constants: 65536, doubled each 2000 updates") {
  GradScaler scaler(at::kCPU);
  CHECK(scaler.current_scale() == 65536.0);
  for (int i = 0; i < 1999; ++i) scaler.update(flag(false));
  CHECK(scaler.current_scale() == 65536.0);
  CHECK(scaler.growth_tracker() == 1999);
  scaler.update(flag(false));
  CHECK(scaler.current_scale() == 131072.0);
  CHECK(scaler.growth_tracker() == 0);
  scaler.update(flag(false));
  scaler.update(flag(true));
  CHECK(scaler.current_scale() == 65536.0);
  CHECK(scaler.growth_tracker() == 0);
}

TEST_CASE("a scale does not grow beyond the finite numbers") {
  GradScalerOptions options;
  options.init_scale = 0x1p127;
  options.growth_interval = 1;
  GradScaler scaler(at::kCPU, options);
  scaler.update(flag(false));
  CHECK(scaler.current_scale() == 0x1p127);
}

TEST_CASE("a scaler goes on from a state") {
  GradScaler scaler(at::kCPU), other(at::kCPU);
  scaler.update(flag(true));
  scaler.update(flag(false));
  other.set_state(scaler.current_scale(), scaler.growth_tracker());
  for (GradScaler* each : {&scaler, &other}) each->update(flag(false));
  CHECK(other.current_scale() == 32768.0);
  CHECK(other.growth_tracker() == 2);
  CHECK(scaler.growth_tracker() == 2);
}

TEST_CASE("an update that is skipped leaves weights, moments and step counts as they are") {
  const auto make = [] {
    return test::FlatModule({{"weight", test::wave({4, 4})}, {"bias", test::wave({4})}});
  };
  test::FlatModule module = make(), untouched = make();
  const auto run = [](test::FlatModule& m, bool with_skips) {
    const FlatParameters flat(m);
    FlatGradients gradients(flat);
    Optimizer optimizer(flat, {});
    for (int step = 0; step < 3; ++step) {
      gradients.zero_grad();
      m.backward({{"weight", test::wave({4, 4}, 0.3 * step)}, {"bias", test::wave({4}, 0.2)}});
      optimizer.step(gradients, 1e-2, at::ones({}), flag(false));
      optimizer.count_update();
      if (!with_skips) continue;
      gradients.zero_grad();
      m.backward({{"weight", test::wave({4, 4})}, {"bias", at::full({4}, NAN)}});
      optimizer.step(gradients, 1e-2, at::ones({}), flag(true));
    }
    const std::optional<ParameterState> state = optimizer.state(0);
    REQUIRE(state);
    return std::tuple(
        state->step, state->exp_avg.clone(), state->exp_avg_sq.clone(), flat.values().clone());
  };
  const auto [steps, mean, square, values] = run(module, true);
  const auto [all_steps, all_mean, all_square, all_values] = run(untouched, false);
  CHECK(steps == all_steps);
  CHECK(at::equal(mean, all_mean));
  CHECK(at::equal(square, all_square));
  CHECK(at::equal(values, all_values));
}

}  // namespace
}  // namespace dalle2
