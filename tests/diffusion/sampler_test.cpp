// SPDX-License-Identifier: MIT
#include "diffusion/sampler.h"

#include "diffusion/decoder_fixture.h"

namespace dalle2::test {
namespace {

std::vector<std::pair<int64_t, int64_t>> as_pairs(const std::vector<TimePair>& pairs) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (const TimePair& pair : pairs) result.emplace_back(pair.time, pair.next);
  return result;
}

}  // namespace

TEST_CASE("DDIM's time pairs are the reference's") {
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  CHECK((as_pairs(ddim_time_pairs(10, 4)) == Pairs{{8, 6}, {6, 4}, {4, 2}, {2, 0}}));
  CHECK((as_pairs(ddim_time_pairs(4, 3)) == Pairs{{3, 2}, {2, 1}, {1, 0}}));
  const auto long_walk = as_pairs(ddim_time_pairs(1000, 27));
  CHECK(long_walk.size() == 27);
  CHECK((long_walk.front() == std::pair<int64_t, int64_t>{964, 928}));
  CHECK(long_walk.back().second == 0);
}

TEST_CASE("DPM-Solver++(2M) equals diffusers' scheduler on the same network") {
  const Fixture fixture = load_fixture("diffusion/dpmpp");
  for (const auto& c : listed(fixture, "cases", 4)) {
    const auto name = c["name"].get<std::string>();
    INFO(name);
    const auto objective = c["objective"].get<std::string>();
    nlohmann::json unet = d1_unet();
    unet.erase("image_embed_dim");
    unet.erase("cond_dim");
    Decoder decoder = decoder_of({{"unets", {unet}},
                                  {"image_size", 16},
                                  {"unconditional", true},
                                  {"learned_variance", false},
                                  {"timesteps", c["timesteps"]},
                                  {"predict_v", objective == "v"},
                                  {"predict_x_start", objective == "x_start"},
                                  {"zero_terminal_snr", c["zero_terminal_snr"]}});
    DecoderSampleOptions options;
    options.sampler = "dpmpp";
    options.sample_timesteps = c["steps"].get<int64_t>();
    options.batch_size = 2;
    options.init_noise = {wave({2, 3, 16, 16}, 0.83, 0.5, 1.2)};
    // A loop's tolerance.
    expect_close(decoder->sample(options), (fixture.tensor(name) + 1) / 2, 1e-3, "sample");

    NoiseScheduleOptions schedule;
    schedule.timesteps = c["timesteps"].get<int64_t>();
    const auto sampler = make_dpmpp_sampler(NoiseSchedule(schedule), c["steps"].get<int64_t>());
    const std::vector<TimePair> pairs = sampler->time_pairs();
    const auto times = c["times"].get<std::vector<int64_t>>();
    REQUIRE(pairs.size() == times.size());
    for (size_t i = 0; i < times.size(); ++i) CHECK(pairs[i].time == times[i]);
    CHECK(pairs.back().next == -1);
  }
}

TEST_CASE("DPM-Solver++(2M) is of second order where the exact path is known") {
  // Pixels from N(0, 0.5^2): the best clean image is linear in x, and x keeps its own quantile.
  constexpr double kVariance = 0.25;
  constexpr int64_t kEnd = 500;
  NoiseScheduleOptions options;
  options.kind = BetaSchedule::linear;
  options.timesteps = 2 * kEnd + 1;
  const NoiseSchedule schedule(options);
  const auto spread = [&](int64_t t) {
    const auto acp = schedule->alphas_cumprod[t].item<double>();
    return acp * kVariance + 1 - acp;
  };
  const auto error = [&](int64_t steps) {
    const auto sampler = make_dpmpp_sampler(schedule, steps);
    at::Tensor x = at::ones({1, 1, 1, 1}, at::kDouble);
    for (const TimePair& pair : sampler->time_pairs()) {
      if (pair.time == kEnd) break;
      const double share =
          schedule->sqrt_alphas_cumprod[pair.time].item<double>() * kVariance / spread(pair.time);
      x = sampler->step(x, at::tensor({pair.time}, at::kLong), pair, {share * x, {}}, nullptr);
    }
    const double exact = std::sqrt(spread(kEnd) / spread(2 * kEnd));
    return std::abs(x.item<double>() - exact);
  };
  const double coarse = error(20);
  const double fine = error(40);
  INFO(coarse << " with 20 steps, " << fine << " with 40");
  CHECK(coarse > 1e-4);
  CHECK(fine < coarse / 3);  // a first-order solver halves it
}

TEST_CASE("Dynamic thresholding clips each sample to its own percentile") {
  const Fixture f = load_fixture("diffusion/formulas");
  const at::Tensor wide = f.tensor("wide");
  expect_close(dynamic_threshold(wide, 0.9), f.tensor("dynamic_threshold"), 1e-6, "dynamic");
  // More values than at::quantile takes in one call.
  const at::Tensor large = at::full({5, 1, 2048, 2048}, 0.5);
  CHECK(at::equal(dynamic_threshold(large, 0.9), large));
}

TEST_CASE("Guidance rescale equals diffusers' and is off at 0") {
  const Fixture f = load_fixture("diffusion/formulas");
  expect_close(rescale_guidance(f.tensor("guided"), f.tensor("mean"), 0.7),
               f.tensor("rescaled"),
               1e-6,
               "rescaled");
  CHECK(at::equal(rescale_guidance(f.tensor("guided"), f.tensor("mean"), 0), f.tensor("guided")));
}

TEST_CASE("Guidance rescale changes guided samples alone") {
  Decoder decoder =
      decoder_of(d1_decoder({{"image_cond_drop_prob", 0.1}, {"sample_timesteps", 3}}));
  DecoderSampleOptions options;
  options.image_embeds = wave({2, 12}, 0.9, 0.3);
  options.init_noise = {wave({2, 3, 16, 16}, 0.83)};
  const auto sample = [&](double scale, double rescale) {
    options.cond_scale = scale;
    options.cfg_rescale = rescale;
    return decoder->sample(options);
  };
  CHECK(at::equal(sample(1.0, 0.7), sample(1.0, 0.0)));
  CHECK_FALSE(at::equal(sample(3.0, 0.7), sample(3.0, 0.0)));
  // A tiny share of rescaling is as good as none: both ways of guiding agree.
  expect_close(sample(3.0, 1e-9), sample(3.0, 0.0), 1e-4, "two forward passes");
}

}  // namespace dalle2::test
