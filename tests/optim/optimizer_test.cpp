// SPDX-License-Identifier: MIT
#include "optim/optimizer.h"

#include "flat_module.h"
#include "optim/flat_parameters.h"
#include "support/fixture.h"

namespace dalle2 {
namespace {

using test::kTrajectoryTolerance;

OptimizerOptions optimizer_options(const nlohmann::json& json) {
  OptimizerOptions options;
  options.weight_decay = json.at("wd").get<double>();
  options.eps = json.at("eps").get<double>();
  options.beta1 = json.at("betas")[0].get<double>();
  options.beta2 = json.at("betas")[1].get<double>();
  options.group_wd_params = json.at("group_wd_params").get<bool>();
  return options;
}

StateDict initial_parameters(const test::Fixture& fixture) {
  StateDict parameters;
  for (const auto& name : fixture.json.at("names"))
    parameters.emplace_back(name, fixture.tensor("initial." + name.get<std::string>()));
  return parameters;
}

void check_state(const test::Fixture& fixture,
                 const Optimizer& optimizer,
                 const FlatParameters& flat) {
  size_t index = 0;
  for (const ParameterGroup& group : optimizer.groups()) {
    for (const size_t i : group.members) {
      const std::string prefix = fmt::format("state.{}.", index++);
      const std::optional<ParameterState> state = optimizer.state(i);
      INFO(prefix << flat.parameters()[i].name);
      REQUIRE(state.has_value() == fixture.has(prefix + "step"));
      if (state) {
        CHECK(static_cast<double>(state->step) == fixture.tensor(prefix + "step").item<double>());
        test::expect_close(
            state->exp_avg, fixture.tensor(prefix + "exp_avg"), kTrajectoryTolerance, "exp_avg");
        test::expect_close(state->exp_avg_sq,
                           fixture.tensor(prefix + "exp_avg_sq"),
                           kTrajectoryTolerance,
                           "exp_avg_sq");
      }
    }
  }
}

void check_groups(const test::Fixture& fixture,
                  const Optimizer& optimizer,
                  const FlatParameters& flat) {
  const nlohmann::json& groups = fixture.json.at("groups");
  REQUIRE(optimizer.groups().size() == groups.size());
  std::vector<std::string> order;
  for (size_t g = 0; g < groups.size(); ++g) {
    CHECK(optimizer.groups()[g].weight_decay == groups[g].at("weight_decay").get<double>());
    REQUIRE(optimizer.groups()[g].members.size() == groups[g].at("params").size());
    for (const size_t i : optimizer.groups()[g].members) order.push_back(flat.parameters()[i].name);
  }
  CHECK(order == fixture.json.at("order").get<std::vector<std::string>>());
}

/// Replays all steps; parameters get late, rare or no gradients as the fixture says.
void replay_optimizer(const std::string& name) {
  INFO(name);
  const test::Fixture fixture = test::load_fixture("optim/" + name);
  test::FlatModule module(initial_parameters(fixture));
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  Optimizer optimizer(flat, optimizer_options(fixture.json));
  check_groups(fixture, optimizer, flat);

  const nlohmann::json& max_grad_norm = fixture.json.at("max_grad_norm");
  const double lr = fixture.json.at("lr").get<double>();
  for (int64_t step = 0; step < fixture.json.at("steps").get<int64_t>(); ++step) {
    gradients.zero_grad();
    module.backward(fixture.below(fmt::format("grad.{}.", step)));
    at::Tensor divisor = at::ones({});
    if (!max_grad_norm.is_null()) {
      const at::Tensor norm = grad_norm(gradients.values());
      const double expected = fixture.json.at("norms").at(static_cast<size_t>(step)).get<double>();
      CHECK(norm.item<double>() == Approx(expected).epsilon(1e-6));
      divisor = clip_divisor(norm, max_grad_norm.get<double>());
    }
    test::update(optimizer, gradients, lr, divisor);
    for (const auto& [parameter, expected] : fixture.below(fmt::format("after.{}.", step))) {
      test::expect_close(module.parameter(parameter),
                         expected,
                         kTrajectoryTolerance,
                         fmt::format("{} after step {}", parameter, step));
    }
  }
  check_state(fixture, optimizer, flat);
}

TEST_CASE("AdamW and Adam follow torch for twelve steps, with one group or two, clipped or not") {
  for (const char* name : {"adamw", "adamw_clip", "adamw_one_group", "adam"})
    replay_optimizer(std::string("optimizer_") + name);
}

StateDict two_parameters() {
  return {{"weight", test::wave({4, 4})}, {"bias", test::wave({4})}};
}

TEST_CASE("an optimizer that takes over another's state goes on bit for bit") {
  test::FlatModule a(two_parameters()), b(two_parameters());
  const FlatParameters flat_a(a), flat_b(b);
  FlatGradients gradients_a(flat_a), gradients_b(flat_b);
  Optimizer first(flat_a, {}), second(flat_b, {});
  const auto run = [](test::FlatModule& module,
                      FlatGradients& gradients,
                      Optimizer& optimizer,
                      int begin,
                      int end) {
    for (int step = begin; step < end; ++step) {
      gradients.zero_grad();
      StateDict g;
      g.emplace_back("weight", test::wave({4, 4}, 0.3 * step));
      if (step % 2 == 1) g.emplace_back("bias", test::wave({4}, 0.1 * step));
      module.backward(g);
      test::update(optimizer, gradients, 1e-2);
    }
  };
  run(a, gradients_a, first, 0, 5);
  for (size_t i = 0; i < 2; ++i) {
    second.set_state(i, *first.state(i));
    const torch::NoGradGuard no_grad;
    flat_b.parameters()[i].tensor.copy_(flat_a.parameters()[i].tensor);
  }
  run(a, gradients_a, first, 5, 9);
  run(b, gradients_b, second, 5, 9);
  CHECK(at::equal(flat_a.values(), flat_b.values()));
}

TEST_CASE("a parameter whose state is taken away starts over") {
  test::FlatModule module(two_parameters());
  const FlatParameters flat(module);
  FlatGradients gradients(flat);
  Optimizer optimizer(flat, {});
  module.backward({{"weight", at::ones({4, 4})}});
  test::update(optimizer, gradients, 1e-2);
  REQUIRE(optimizer.state(0).has_value());
  CHECK_FALSE(optimizer.state(1).has_value());
  optimizer.forget();
  CHECK_FALSE(optimizer.state(0).has_value());
  test::update(optimizer, gradients, 1e-2);
  CHECK(optimizer.state(0)->step == 1);
  CHECK(optimizer.state(0)->exp_avg[0][0].item<float>() == Approx(0.1));
}

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

TEST_CASE("a factor holds for every rate, annealed, warming up or constant") {
  for (const auto period : {std::optional<int64_t>(), std::optional<int64_t>(8)}) {
    LrSchedule schedule{2.0, 4, period};
    const LrSchedule plain = schedule;
    schedule.factor = 0.25;
    for (int64_t step = 0; step < 8; ++step) CHECK(schedule.at(step) == 0.25 * plain.at(step));
  }
}

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

TEST_CASE("a NaN among the gradients shows in the norm") {
  at::Tensor flat = at::ones({1024});
  flat[7] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(grad_norm(flat).item<double>()));
}

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    first = register_module("first", torch::nn::Linear(3, 4));
    second = register_module("second", torch::nn::Linear(4, 2));
    register_buffer("seen", at::ones({2}));
    first->weight.set_requires_grad(false);
    first->bias.set_requires_grad(false);
  }
  torch::nn::Linear first = nullptr, second = nullptr;
};

TEST_CASE("the names of what is trained follow from the gradients that are required") {
  const TwoLayers module;
  CHECK(trained_parameters(module) == std::vector<std::string>{"second.weight", "second.bias"});
}

TEST_CASE("flat buffers of what is trained hold nothing of the rest") {
  TwoLayers module;
  module.first->to(at::kBFloat16);
  const void* place = module.first->weight.const_data_ptr();
  const FlatParameters flat(module, trained_parameters(module));
  CHECK(flat.names() == trained_parameters(module));
  CHECK(flat.buffers().size() == 1);
  CHECK(module.first->weight.const_data_ptr() == place);
  CHECK(module.first->weight.scalar_type() == at::kBFloat16);
  CHECK(module.second->weight.const_data_ptr() == flat.values().const_data_ptr());
  FlatGradients gradients(flat);
  module.second->forward(at::ones({1, 4})).sum().backward();
  CHECK(gradients.values().sum().item<double>() == Approx(2 * 4 + 2));
  CHECK_FALSE(module.first->weight.grad().defined());
}

}  // namespace
}  // namespace dalle2
