// SPDX-License-Identifier: MIT
#include "diffusion/loss.h"

#include <torch/torch.h>

#include <cmath>

#include "diffusion/decoder_fixture.h"
#include "diffusion/seeded_generator.h"

namespace dalle2::test {
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

TEST_CASE("mode swaps the ends and keeps the middle; logit_normal without spread is its mean") {
  const at::Tensor u = mode_density(torch::tensor({0.0, 0.5, 1.0}), 1.29);
  CHECK(at::allclose(u, torch::tensor({1.0, 0.5, 0.0}), 0, 1e-6));
  const at::Tensor mean = logit_normal_density(torch::tensor({-3.0, 0.0, 2.0}), 0.7, 0);
  CHECK(at::allclose(mean, at::sigmoid(torch::tensor({0.7, 0.7, 0.7}))));
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
