// SPDX-License-Identifier: MIT
#include "optim/ema_model.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

// Ours is upstream's formula one by one; the call for all tensors rounds in another order.
constexpr double kTolerance = 1e-6;
// Upstream computes decays in the same doubles.
constexpr double kDecayTolerance = 1e-14;

using Tensors = std::vector<at::Tensor>;

EmaModelOptions ema_model_options(const nlohmann::json& json) {
  EmaModelOptions options;
  options.decay = json.value("decay", options.decay);
  options.min_decay = json.value("min_decay", options.min_decay);
  options.update_after_step = json.value("update_after_step", options.update_after_step);
  options.use_ema_warmup = json.value("use_ema_warmup", options.use_ema_warmup);
  options.inv_gamma = json.value("inv_gamma", options.inv_gamma);
  options.power = json.value("power", options.power);
  options.foreach = json.value("foreach", options.foreach);
  return options;
}

/// The tensors of the list below `prefix`, the one called "frozen" without a gradient.
Tensors parameters_of(const test::Fixture& fixture, const std::string& prefix) {
  Tensors out;
  for (const auto& name : fixture.json.at("names")) {
    const auto key = name.get<std::string>();
    out.push_back(fixture.tensor(prefix + key).clone().set_requires_grad(key != "frozen"));
  }
  return out;
}

/// All numbers of a list: an average may be near zero where the numbers that it was made of, and
/// with them the rounding, are not.
at::Tensor all_of(const Tensors& tensors) {
  Tensors flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.detach().flatten());
  return at::cat(flat);
}

void replay_ema_model(const std::string& name, bool foreach) {
  const test::Fixture fixture = test::load_fixture("ema_model/" + name);
  EmaModelOptions options = ema_model_options(fixture.json.at("options"));
  options.foreach = foreach;
  EmaModel average(parameters_of(fixture, "initial."), options);
  CHECK_FALSE(average.cur_decay_value());
  for (int64_t step = 0; step < fixture.json.at("steps").get<int64_t>(); ++step) {
    const Tensors online = parameters_of(fixture, fmt::format("online.{}.", step));
    average.step(online);
    CHECK(average.optimization_step() == step + 1);
    CHECK(average.cur_decay_value().value() ==
          Approx(fixture.json.at("decays")[static_cast<size_t>(step)].get<double>())
              .epsilon(0)
              .margin(kDecayTolerance));
    const Tensors expected = parameters_of(fixture, fmt::format("average.{}.", step));
    test::expect_close(all_of(average.shadow_params()),
                       all_of(expected),
                       kTolerance,
                       fmt::format("{}: averages after step {}", name, step));
    for (size_t i = 0; i < online.size(); ++i) {
      if (!online[i].requires_grad()) CHECK(at::equal(average.shadow_params()[i], online[i]));
    }
  }
}

TEST_CASE("the average of a parameter list follows EMAModel of diffusers, one by one and at once") {
  const bool foreach = GENERATE(false, true);
  for (const char* name : {"defaults", "warmup", "shape", "clamped", "crossed"}) {
    replay_ema_model(name, foreach);
  }
}

TEST_CASE(
    "the decay of any step is that of diffusers, plain and with warm-up, between its bounds") {
  for (const char* name : {"defaults", "warmup", "shape", "clamped", "crossed"}) {
    const test::Fixture fixture = test::load_fixture(std::string("ema_model/") + name);
    const EmaModel average({at::zeros({1})}, ema_model_options(fixture.json.at("options")));
    for (size_t i = 0; i < fixture.json.at("far").size(); ++i) {
      INFO(name << " step " << fixture.json.at("far")[i]);
      CHECK(average.get_decay(fixture.json.at("far")[i].get<int64_t>()) ==
            Approx(fixture.json.at("far_decays")[i].get<double>())
                .epsilon(0)
                .margin(kDecayTolerance));
    }
  }
}

TEST_CASE("the first step makes the average the parameter") {
  const Tensors parameters = {test::wave({7})};
  for (const bool foreach : {false, true}) {
    EmaModelOptions options;
    options.foreach = foreach;
    EmaModel average({at::zeros({7})}, options);
    average.step({parameters[0].clone().set_requires_grad(true)});
    CHECK(at::equal(average.shadow_params()[0], parameters[0]));
    CHECK(average.get_decay(2) == Approx(2.0 / 11.0));
  }
}

TEST_CASE("the average is lent to the parameters and the weights come back bit for bit") {
  const Tensors parameters = {test::wave({3, 2}).set_requires_grad(true), test::wave({4}, 0.9)};
  const Tensors before = {parameters[0].detach().clone(), parameters[1].clone()};
  EmaModel average({at::ones({3, 2}), at::ones({4})}, {});
  average.store(parameters);
  average.copy_to(parameters);
  CHECK(at::equal(parameters[0], at::ones({3, 2})));
  average.restore(parameters);
  CHECK(at::equal(parameters[0], before[0]));
  CHECK(at::equal(parameters[1], before[1]));
  const auto texts = test::load_fixture("ema_model/refusals").json;
  CHECK_THROWS_WITH(average.restore(parameters), texts.at("restore").get<std::string>());
}

TEST_CASE("only floating averages change their type, and a shadow is not tied to its parameter") {
  const Tensors parameters = {at::ones({2}), at::ones({2}, at::kLong)};
  EmaModel average(parameters, {});
  parameters[0].zero_();
  CHECK(at::equal(average.shadow_params()[0], at::ones({2})));
  average.to(at::kCPU, at::kHalf);
  CHECK(average.shadow_params()[0].scalar_type() == at::kHalf);
  CHECK(average.shadow_params()[1].scalar_type() == at::kLong);
  average.to(std::nullopt, at::kFloat);
  CHECK(average.shadow_params()[0].scalar_type() == at::kFloat);
}

TEST_CASE("a list of other parameters is refused") {
  EmaModel average({at::ones({2})}, {});
  CHECK_THROWS_AS(average.step({}), std::logic_error);
  CHECK_THROWS_AS(average.copy_to({at::ones({3})}), std::logic_error);
}

TEST_CASE("options of an EMAModel out of range are refused by name") {
  const auto refused = [](auto change, const std::string& name) {
    EmaModelOptions options;
    change(options);
    CHECK_THROWS_WITH(EmaModel({}, options), Catch::Contains(name));
  };
  refused([](EmaModelOptions& o) { o.decay = 1.5; }, "ema.decay: expected a number in [0, 1]");
  refused([](EmaModelOptions& o) { o.min_decay = -1; }, "ema.min_decay");
  refused([](EmaModelOptions& o) { o.update_after_step = -1; }, "ema.update_after_step");
  refused([](EmaModelOptions& o) { o.inv_gamma = 0; }, "ema.inv_gamma");
  refused([](EmaModelOptions& o) { o.power = 0; }, "ema.power");
}

}  // namespace
}  // namespace dalle2
