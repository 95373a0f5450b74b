// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <numbers>

#include "diffusion/decoder_fixture.h"
#include "diffusion/seeded_generator.h"

namespace dalle2::test {

namespace {

NoiseSchedule schedule_of(const nlohmann::json& c) {
  NoiseScheduleOptions options;
  options.timesteps = c.at("timesteps").get<int64_t>();
  const auto name = c.at("kind").get<std::string>();
  options.kind = name == "linear" ? BetaSchedule::linear
                 : name == "jsd"  ? BetaSchedule::jsd
                                  : BetaSchedule::cosine;
  return NoiseSchedule(options);
}

// Element by element: weights span many orders of magnitude.
void expect_each(const at::Tensor& actual, const at::Tensor& expected, double relative) {
  INFO("actual " << actual << "\nexpected " << expected);
  CHECK(at::allclose(actual, expected, relative, 0));
}

// The fp32 alphas_cumprod of the two libraries may differ in the last place, 6e-8, which 1 - acp
// sees magnified where acp is near 1, and snr itself where acp is tiny (5e-5 at the ends of 1000
// cosine steps).
constexpr double kSnrTolerance = 1e-3;

}  // namespace

TEST_CASE("Signal-to-noise ratios and min-SNR weights equal diffusers' for every objective") {
  const Fixture f = load_fixture("training_utilities/weights");
  for (const auto& c : listed(f, "cases", 4)) {
    const NoiseSchedule schedule = schedule_of(c);
    const std::string name =
        fmt::format("{}.{}", c.at("kind").get<std::string>(), c.at("timesteps").get<int64_t>());
    INFO(name);
    const at::Tensor t = f.tensor(name + ".t");
    const double gamma = c.at("gamma").get<double>();
    const at::Tensor snr = signal_to_noise(*schedule, t);
    CHECK(signal_to_noise(*schedule, t.view({1, -1})).sizes() == at::IntArrayRef({1, t.numel()}));
    expect_each(snr, f.tensor(name + ".snr"), kSnrTolerance);
    expect_each(min_snr_weights(snr, gamma, Objective::v), f.tensor(name + ".v"), kSnrTolerance);
    expect_each(min_snr_weights(snr, gamma, Objective::x_start),
                f.tensor(name + ".x_start"),
                kSnrTolerance);
    // Where nothing is left of the image diffusers divides 0 by 0; the limit is 1.
    const at::Tensor of_noise = f.tensor(name + ".eps");
    CHECK((c.at("kind") == "jsd") == of_noise.isnan().any().item<bool>());
    expect_each(min_snr_weights(snr, gamma, Objective::eps),
                at::where(of_noise.isnan(), at::ones_like(of_noise), of_noise),
                kSnrTolerance);
  }
}

TEST_CASE("Min-SNR weights are finite at both ends of the signal-to-noise ratio") {
  const at::Tensor snr = torch::tensor({0.0F, INFINITY});
  CHECK(at::equal(min_snr_weights(snr, 5, Objective::eps), torch::tensor({1.0F, 0.0F})));
  CHECK(at::equal(min_snr_weights(snr, 5, Objective::v), torch::tensor({0.0F, 0.0F})));
  CHECK(at::equal(min_snr_weights(snr, 5, Objective::x_start), torch::tensor({0.0F, 5.0F})));
}

TEST_CASE("Weights by sigma equal diffusers'") {
  const Fixture f = load_fixture("training_utilities/weights");
  const at::Tensor sigmas = f.tensor("sigmas");
  // One square and one division each.
  expect_each(sigma_weights(LossWeighting::sigma_sqrt, sigmas), f.tensor("sigma_sqrt"), 1e-6);
  expect_each(sigma_weights(LossWeighting::cosmap, sigmas), f.tensor("cosmap"), 1e-6);
  CHECK(at::equal(sigma_weights(LossWeighting::none, sigmas), f.tensor("none")));
  const at::Tensor half = torch::tensor({0.5F});
  CHECK(sigma_weights(LossWeighting::sigma_sqrt, half).item<double>() == 4);
  CHECK(sigma_weights(LossWeighting::cosmap, half).item<double>() ==
        Approx(4 / std::numbers::pi).epsilon(1e-6));
}

TEST_CASE("The share of the noise goes from 0 to 1, a half where image and noise weigh the same") {
  const NoiseSchedule schedule = schedule_of({{"kind", "jsd"}, {"timesteps", 10}});
  const at::Tensor share = noise_share(*schedule, at::arange(10));
  CHECK(share[9].item<double>() == 1);
  CHECK(((share.slice(0, 1) - share.slice(0, 0, 9)) > 0).all().item<bool>());
  CHECK(schedule->alphas_cumprod[4].item<double>() == Approx(0.5));
  CHECK(share[4].item<double>() == Approx(0.5).epsilon(1e-6));
  CHECK(share[6].item<double>() ==
        Approx(std::sqrt(0.7) / (std::sqrt(0.7) + std::sqrt(0.3))).epsilon(1e-6));
}

TEST_CASE("What is asked for multiplies, and nothing asked for leaves the losses as they are") {
  const NoiseSchedule s = schedule_of({{"kind", "cosine"}, {"timesteps", 25}});
  const at::Tensor losses = torch::tensor({1.0F, 2.0F, 3.0F});
  const at::Tensor t = at::tensor({0, 11, 24}, at::kLong);
  LossPlan plan;
  const auto weigh = [&](double p2_gamma) {
    return weighed(plan, p2_gamma, Objective::v, *s, losses, t);
  };
  CHECK(at::equal(weigh(0), losses));
  CHECK(at::equal(weigh(1), losses * s->p2_loss_weight.index_select(0, t)));
  plan.min_snr_gamma = 5;
  const at::Tensor min_snr = min_snr_weights(signal_to_noise(*s, t), 5, Objective::v);
  CHECK(at::equal(weigh(0), losses * min_snr));
  plan.weighting = LossWeighting::cosmap;
  CHECK(at::equal(weigh(0),
                  losses * min_snr * sigma_weights(LossWeighting::cosmap, noise_share(*s, t))));
}

TEST_CASE("sigma_sqrt never weighs more than a million") {
  // Of 100,000 cosine steps the first has less than a thousandth of noise.
  const NoiseSchedule s = schedule_of({{"kind", "cosine"}, {"timesteps", 100000}});
  const at::Tensor t = at::tensor({0, 50000}, at::kLong);
  REQUIRE(noise_share(*s, t)[0].item<double>() < 1e-3);
  LossPlan plan;
  plan.weighting = LossWeighting::sigma_sqrt;
  const at::Tensor weights = weighed(plan, 0, Objective::eps, *s, at::ones({2}), t);
  CHECK(weights[0].item<double>() == Approx(1e6));
  CHECK(weights[1].item<double>() ==
        Approx(std::pow(noise_share(*s, t)[1].item<double>(), -2)).epsilon(1e-6));
}

namespace {

using nlohmann::json;

constexpr int64_t kDraws = 1000;
constexpr int64_t kSteps = 50;

// Times that a decoder of 50 steps draws with a `train.timestep_sampling`.
at::Tensor drawn_times(const json& sampling, uint64_t seed) {
  const Decoder decoder(plan_of(d1_decoder({{"image_size", 2}, {"timesteps", kSteps}}),
                                {{"timestep_sampling", sampling}}));
  return decoder->draw(kDraws, 1, generator_of(seed)).times;
}

}  // namespace

TEST_CASE("The densities equal diffusers', from the same draws and from the same seed") {
  const Fixture f = load_fixture("training_utilities/densities");
  int case_number = 0;
  for (const json& c : listed(f, "cases", 5)) {
    const std::string name = std::to_string(case_number++) + ".";
    INFO(name << c.dump());
    const at::Tensor draws = f.tensor(name + "draws");
    const bool normal = c.at("scheme") == "logit_normal";
    at::Generator generator = generator_of(c.at("seed").get<uint64_t>());
    const at::Tensor own = normal ? at::randn({64}, generator) : at::rand({64}, generator);
    CHECK(at::allclose(own, draws, 0, 1e-6));  // vectorised logarithms differ in the last place
    const at::Tensor u =
        normal ? logit_normal_density(
                     draws, c.at("logit_mean").get<double>(), c.at("logit_std").get<double>())
               : mode_density(draws, c.at("mode_scale").get<double>());
    // A few roundings of numbers up to 1.
    CHECK(at::allclose(u, f.tensor(name + "u"), 0, 5e-7));
    // A rounding may carry u across the edge of a time, nothing more.
    const at::Tensor apart = (times_of(u, 1000) - f.tensor(name + "times")).abs();
    CHECK(apart.sum().item<int64_t>() <= 1);
    CHECK(at::equal(times_of(f.tensor(name + "u"), 1000), f.tensor(name + "times")));
  }
}

TEST_CASE("u near 0 is the noisiest time, and every u in [0, 1] has a time") {
  const at::Tensor u = torch::tensor({0.0, 0.019, 0.021, 0.5, 0.9999, 1.0, 1.01, -0.01});
  CHECK(at::equal(times_of(u, 50), at::tensor({49, 49, 48, 24, 0, 0, 0, 49}, at::kLong)));
}

TEST_CASE("The times of a decoder have the density that its JSON asks for") {
  const at::Tensor normals = at::randn({kDraws}, generator_of(1)),
                   uniforms = at::rand({kDraws}, generator_of(1));
  const auto expect = [](const json& sampling, const at::Tensor& u) {
    INFO(sampling.dump());
    CHECK(at::equal(drawn_times(sampling, 1), times_of(u, kSteps)));
  };
  CHECK(at::equal(drawn_times(json::object(), 1),
                  at::randint(0, kSteps, {kDraws}, generator_of(1), at::TensorOptions(at::kLong))));
  expect({{"scheme", "logit_normal"}}, logit_normal_density(normals, 0, 1));
  expect({{"scheme", "logit_normal"}, {"logit_mean", -0.8}, {"logit_std", 0.5}},
         logit_normal_density(normals, -0.8, 0.5));
  expect({{"scheme", "mode"}}, mode_density(uniforms, 1.29));
  expect({{"scheme", "mode"}, {"mode_scale", 8}}, mode_density(uniforms, 8));  // beyond [0, 1]
}

}  // namespace dalle2::test
