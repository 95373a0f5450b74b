// SPDX-License-Identifier: MIT
#include "optim/average_rule.h"

#include "checkpoint/post_hoc.h"
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

AveragesConfig averages_config(const nlohmann::json& json) {
  AveragesConfig config;
  config.ema_beta = json.value("beta", 0.9999);
  config.ema_update_after_step = json.value("update_after_step", config.ema_update_after_step);
  config.ema_update_every = json.value("update_every", config.ema_update_every);
  config.ema_inv_gamma = json.value("inv_gamma", config.ema_inv_gamma);
  config.ema_power = json.value("power", config.ema_power);
  config.ema_min_value = json.value("min_value", config.ema_min_value);
  if (json.contains("update_model_with_ema_every"))
    config.update_model_with_ema_every = json.at("update_model_with_ema_every").get<int64_t>();
  return config;
}

/// The options of a fixture that EMAModel made; what it does not give has its default.
EmaConfig ema_config(const nlohmann::json& json) {
  EmaConfig config;
  config.decay = json.value("decay", config.decay);
  config.min_decay = json.value("min_decay", config.min_decay);
  config.update_after_step = json.value("update_after_step", config.update_after_step);
  config.use_ema_warmup = json.value("use_ema_warmup", config.use_ema_warmup);
  config.inv_gamma = json.value("inv_gamma", config.inv_gamma);
  config.power = json.value("power", config.power);
  return config;
}

void replay_ema(const std::string& name) {
  const test::Fixture fixture = test::load_fixture("optim/" + name);
  AveragedModule online(fixture), average(fixture);
  const FlatParameters flat_online(online), flat_average(average);
  EmaPytorchRule ema(averages_config(fixture.json.at("options")));
  const int64_t calls = fixture.json.at("calls").get<int64_t>();
  for (int64_t call = 0; call < calls; ++call) {
    for (const auto& [tensor, value] : fixture.below(fmt::format("online.{}.", call))) {
      const torch::NoGradGuard no_grad;
      online.tensor(tensor).copy_(value);
    }
    ema.update(flat_average.values(), flat_online.values());
    ema.count();
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

TEST_CASE("the average follows ema_pytorch, parameters and floating buffers, with each option") {
  for (const char* name : {"ema_after_3_every_2",
                           "ema_after_0_every_1",
                           "ema_defaults",
                           "ema_frozen",
                           "ema_shape",
                           "ema_copy_back"})
    replay_ema(name);
}

struct Scalar {
  at::Tensor online = at::zeros({1}), average = at::zeros({1});
  double update(AverageRule& rule, double value) {
    online.fill_(value);
    rule.update(average, online);
    rule.count();
    return average.item<double>();
  }
};

TEST_CASE("what an optimizer may do instead of an update is what the update does") {
  int64_t shares = 0, others = 0;
  for (const auto& [after, every, beta, model_every] :
       std::vector<std::tuple<int64_t, int64_t, double, std::optional<int64_t>>>{
           {0, 1, 0.99, {}}, {3, 2, 0.9, {}}, {2, 3, 1.0, {}}, {1, 2, 0.95, 4}}) {
    AveragesConfig options;
    options.ema_beta = beta;
    options.ema_update_after_step = after;
    options.ema_update_every = every;
    options.update_model_with_ema_every = model_every;
    EmaPytorchRule ema(options);
    torch::manual_seed(6);
    const at::Tensor average = torch::randn({64});
    for (int call = 0; call < 30; ++call) {
      const at::Tensor weights = torch::randn({64}), given = weights.clone(),
                       before = average.clone();
      const std::optional<double> share = ema.share_of_next();
      ema.update(average, weights);
      ema.count();
      if (!share) {
        ++others;
        continue;
      }
      ++shares;
      CHECK(*share < 0.5);
      CHECK(at::equal(weights, given));
      CHECK(at::allclose(average, before + *share * (weights - before), 1e-6, 1e-6));
    }
  }
  CHECK(shares > 30);
  CHECK(others > 60);
  CHECK_FALSE(make_average_rule(AveragesConfig())->share_of_next());  // the first one copies
}

TEST_CASE("a step that the device has skipped changes no average, one that it made does") {
  AveragesConfig options;
  options.ema_beta = 0.9;
  options.ema_update_after_step = 2;
  options.ema_update_every = 1;
  options.update_model_with_ema_every = 4;
  for (const auto& make : test::rules_of_all_kinds(options)) {
    const auto plain = make(), masked = make();
    torch::manual_seed(6);
    const at::Tensor expected = torch::randn({64}), average = expected.clone();
    for (int step = 0; step < 10; ++step) {
      at::Tensor of_plain = torch::randn({64}), of_masked = of_plain.clone();
      plain->update(expected, of_plain);
      plain->count();
      masked->update(average, at::full({64}, NAN), at::ones({}));
      masked->update(average, of_masked, at::zeros({}));
      masked->count();
      REQUIRE(at::equal(average, expected));
      REQUIRE(at::equal(of_masked, of_plain));
    }
  }
}

TEST_CASE("counters of a checkpoint continue the sequence") {
  Scalar one, two;
  AveragesConfig options;
  options.ema_update_after_step = 1;
  options.ema_update_every = 2;
  EmaPytorchRule first(options), second(options);
  for (int call = 0; call < 5; ++call) one.update(first, call);
  two.average.copy_(one.average);
  second.set_counters(first.initted(), first.step());
  for (int call = 5; call < 9; ++call) CHECK(one.update(first, call) == two.update(second, call));
}

// Ours is upstream's formula; the one call for all rounds in another order.
constexpr double kTolerance = 1e-6;
// Upstream computes decays in the same doubles.
constexpr double kDecayTolerance = 1e-14;
constexpr const char* kCases[] = {"defaults", "warmup", "shape", "clamped", "crossed"};

/// All numbers of the list that are averaged: an average may be near zero where the numbers that it
/// was made of, and with them the rounding, are not. What needs no gradient is not the rule's.
at::Tensor all_of(const test::Fixture& fixture, const std::string& prefix) {
  std::vector<at::Tensor> flat;
  for (const auto& name : fixture.json.at("names")) {
    const auto key = name.get<std::string>();
    if (key != "frozen") flat.push_back(fixture.tensor(prefix + key).flatten());
  }
  return at::cat(flat);
}

TEST_CASE("the average follows EMAModel of diffusers, and so it does in one call") {
  const bool foreach = GENERATE(false, true);
  for (const std::string name : kCases) {
    const test::Fixture fixture = test::load_fixture("ema_model/" + name);
    EmaConfig config = ema_config(fixture.json.at("options"));
    config.foreach = foreach;
    DiffusersRule rule(config);
    const at::Tensor average = all_of(fixture, "initial.");
    for (int64_t step = 0; step < fixture.json.at("steps").get<int64_t>(); ++step) {
      CHECK(rule.decay() ==
            Approx(fixture.json.at("decays")[static_cast<size_t>(step)].get<double>())
                .epsilon(0)
                .margin(kDecayTolerance));
      rule.update(average, all_of(fixture, fmt::format("online.{}.", step)));
      rule.count();
      CHECK(rule.step() == step + 1);
      test::expect_close(average,
                         all_of(fixture, fmt::format("average.{}.", step)),
                         kTolerance,
                         fmt::format("{}: averages after step {}", name, step));
    }
  }
}

TEST_CASE("the decay of any step is that of diffusers, plain and with warm-up") {
  for (const std::string name : kCases) {
    const test::Fixture fixture = test::load_fixture("ema_model/" + name);
    const DiffusersRule rule(ema_config(fixture.json.at("options")));
    for (size_t i = 0; i < fixture.json.at("far").size(); ++i) {
      INFO(name << " step " << fixture.json.at("far")[i]);
      CHECK(rule.decay_of(fixture.json.at("far")[i].get<int64_t>()) ==
            Approx(fixture.json.at("far_decays")[i].get<double>())
                .epsilon(0)
                .margin(kDecayTolerance));
    }
  }
}

TEST_CASE("the rule of an average is of the kind that the config names") {
  AveragesConfig config;
  config.ema_update_after_step = 0;
  config.ema.decay = 0.125;
  for (const EmaKind kind : {EmaKind::ema_pytorch, EmaKind::diffusers}) {
    config.ema.kind = kind;
    const auto rule = make_average_rule(config);
    rule->set_counters(/*initted=*/true, /*step=*/1000000);
    CHECK(rule->decay() == (kind == EmaKind::diffusers ? 0.125 : config.ema_beta));
  }
}

PowerProfile profile(int64_t step, double sigma) {
  return {step, gamma_of_sigma(sigma)};
}

TEST_CASE("exponents of widths are ema_pytorch's") {
  const test::Fixture fixture = test::load_fixture("power_ema/power_ema");
  for (const auto& pair : test::listed(fixture, "gammas", 10)) {
    // The reference takes roots of a cubic, whose coefficients grow with 1 / sigma^2.
    CHECK(gamma_of_sigma(pair[0].get<double>()) == Approx(pair[1].get<double>()).epsilon(1e-9));
  }
  for (const double sigma : {0.0, -0.1, 0.29, std::nan("")})
    CHECK_THROWS_AS(gamma_of_sigma(sigma), ConfigError);
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

TEST_CASE("a saved average is itself") {
  std::vector<PowerProfile> snapshots;
  for (int64_t step = 500; step <= 4000; step += 500) {
    for (const double sigma : {0.05, 0.1}) snapshots.push_back(profile(step, sigma));
  }
  const PostHocWeights same = post_hoc_weights(snapshots, profile(2000, 0.1));
  for (size_t i = 0; i < snapshots.size(); ++i)
    CHECK(same.weights[i] == Approx(i == 7 ? 1.0 : 0.0).margin(1e-6));
  CHECK(same.missed < 1e-6);
}

}  // namespace
}  // namespace dalle2
