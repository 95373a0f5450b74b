// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>
#include <cmath>
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

constexpr int64_t kDraws = 20000;
constexpr int64_t kSteps = 50;

// Times that a decoder of 50 steps draws with a `train.timestep_sampling`.
at::Tensor drawn_times(const json& sampling, uint64_t seed) {
  const Decoder decoder(plan_of(d1_decoder({{"image_size", 2}, {"timesteps", kSteps}}),
                                {{"timestep_sampling", sampling}}));
  return decoder->draw(kDraws, 1, generator_of(seed)).times;
}

// Counts of ten bins of five times each, against the shares that u has in them. Bin 0 has the
// cleanest times, u in [0.9, 1].
void expect_histogram(const at::Tensor& times, const std::vector<double>& shares) {
  REQUIRE(times.min().item<int64_t>() >= 0);
  REQUIRE(times.max().item<int64_t>() < kSteps);
  const at::Tensor counts = at::bincount(times.floor_divide(5), {}, 10);
  for (int64_t bin = 0; bin < 10; ++bin) {
    const double share = shares[static_cast<size_t>(bin)];
    // Four standard deviations: one in 16,000 bins of a right sampler is outside.
    const double margin = 4 * std::sqrt(share * (1 - share) * kDraws);
    INFO("bin " << bin);
    CHECK(counts[bin].item<double>() == Approx(share * kDraws).margin(margin + 1));
  }
}

// Shares of the bins by the distribution function of u.
template <class Cdf>
std::vector<double> shares_of(Cdf cdf) {
  std::vector<double> shares;
  for (int bin = 0; bin < 10; ++bin) shares.push_back(cdf(1 - bin / 10.0) - cdf(0.9 - bin / 10.0));
  return shares;
}

double logit_normal_cdf(double u, double mean, double std) {
  if (u <= 0) return 0;
  if (u >= 1) return 1;
  return 0.5 * std::erfc(-(std::log(u / (1 - u)) - mean) / std / std::sqrt(2.0));
}

// The share of uniform v that gives at most u; the map falls from 1 to 0 for these scales.
double mode_cdf(double u, double scale) {
  double low = 0, high = 1;
  for (int i = 0; i < 60; ++i) {
    const double v = (low + high) / 2;
    const double at_v = 1 - v - scale * (std::pow(std::cos(std::acos(-1.0) * v / 2), 2) - 1 + v);
    (at_v > u ? low : high) = v;
  }
  return 1 - low;
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
  expect_histogram(drawn_times(json::object(), 1), std::vector<double>(10, 0.1));
  expect_histogram(drawn_times({{"scheme", "logit_normal"}}, 2),
                   shares_of([](double u) { return logit_normal_cdf(u, 0, 1); }));
  expect_histogram(
      drawn_times({{"scheme", "logit_normal"}, {"logit_mean", -0.8}, {"logit_std", 0.5}}, 3),
      shares_of([](double u) { return logit_normal_cdf(u, -0.8, 0.5); }));
  expect_histogram(drawn_times({{"scheme", "mode"}}, 4),
                   shares_of([](double u) { return mode_cdf(u, 1.29); }));
  expect_histogram(drawn_times({{"scheme", "mode"}, {"mode_scale", -0.5}}, 5),
                   shares_of([](double u) { return mode_cdf(u, -0.5); }));
  // u near sigmoid(-4) = 0.018: the noisiest of 50 times.
  const at::Tensor noisy =
      drawn_times({{"scheme", "logit_normal"}, {"logit_mean", -5}, {"logit_std", 0}}, 6);
  CHECK((noisy == kSteps - 1).all().item<bool>());
}

TEST_CASE("Times that overshoot the ends stay in the chain") {
  // Far beyond where the map is monotonic, u leaves [0, 1].
  const at::Tensor times = drawn_times({{"scheme", "mode"}, {"mode_scale", 8}}, 7);
  CHECK(times.min().item<int64_t>() == 0);
  CHECK(times.max().item<int64_t>() == kSteps - 1);
}

}  // namespace dalle2::test
