// SPDX-License-Identifier: MIT
#include "diffusion/sampler.h"

#include "config/shared/train_rules.h"
#include "diffusion/decoder_fixture.h"
#include "diffusion/loss.h"
#include "model/pass_scopes.h"

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
  // The prior's, which end behind time 0: one step fewer than asked for.
  CHECK((as_pairs(ddim_time_pairs(10, 4, -1)) == Pairs{{7, 4}, {4, 1}, {1, -1}}));
  CHECK((as_pairs(ddim_time_pairs(10, 2, -1)) == Pairs{{4, -1}}));
  CHECK((as_pairs(ddim_time_pairs(4, 3, -1)) == Pairs{{2, 0}, {0, -1}}));
  CHECK(ddim_time_pairs(1000, 64, -1).size() == 63);
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

namespace {

NoiseSchedule schedule_of(BetaSchedule kind, int64_t timesteps) {
  NoiseScheduleOptions options;
  options.kind = kind;
  options.timesteps = timesteps;
  return NoiseSchedule(options);
}

}  // namespace

TEST_CASE("DREAM, noise offset and input perturbation equal diffusers' with a stub predictor") {
  const Fixture f = load_fixture("training_utilities/dream");
  int case_number = 0;
  for (const auto& c : listed(f, "cases", 4)) {
    const std::string name = std::to_string(case_number++) + ".";
    INFO(name << c.dump());
    const NoiseSchedule schedule =
        schedule_of(c.at("kind") == "linear" ? BetaSchedule::linear : BetaSchedule::cosine,
                    c.at("timesteps").get<int64_t>());
    const at::Tensor t = f.tensor(name + "t");
    LossPlan plan;
    plan.noise_offset = c.at("offset").get<double>();
    plan.input_perturbation = c.at("perturbation").get<double>();
    const NoiseAugmentationDraws draws{f.tensor(name + "offset"), f.tensor(name + "perturbation")};
    const auto [noise, input] = augmented_noise(plan, f.tensor(name + "noise"), draws);
    expect_close(noise, f.tensor(name + "target_noise"), 1e-6, "target noise");
    const at::Tensor x_t = schedule->q_sample(f.tensor(name + "x_start"), t, input);
    // diffusers takes the root of 1 - acp in fp32, we in fp64: 1e-4 of the smallest one.
    expect_close(x_t, f.tensor(name + "noisy"), 1e-5, "noisy image");

    int asked = 0;
    const Predictor stub = [&](const at::Tensor& x) {
      ++asked;
      CHECK(at::equal(x, x_t));
      CHECK_FALSE(at::GradMode::is_enabled());
      return 0.3 * x + 0.05;
    };
    const DreamConfig dream{true, c.at("detail_preservation").get<double>()};
    const TrainingPair pair = dreamed(dream, *schedule, {x_t, noise}, t, noise, stub);
    CHECK(asked == 1);
    expect_close(pair.x_t, f.tensor(name + "dream_noisy"), 1e-5, "image with the error");
    expect_close(pair.target, f.tensor(name + "dream_target"), 1e-5, "target with the error");
  }
}

TEST_CASE("DREAM's step carries no gradient of the extra pass") {
  const NoiseSchedule s = schedule_of(BetaSchedule::cosine, 30);
  const at::Tensor weight = at::full({}, 0.4).requires_grad_();
  const at::Tensor noise = wave({1, 3, 4, 4}, 0.83);
  const TrainingPair pair = dreamed({true, 1.0},
                                    *s,
                                    {wave({1, 3, 4, 4}), noise},
                                    at::tensor({20}, at::kLong),
                                    noise,
                                    [&](const at::Tensor& x) { return weight * x; });
  CHECK_FALSE(pair.x_t.requires_grad());
  CHECK_FALSE(pair.target.requires_grad());
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE("DREAM does not ask the predictor while it is off") {
  const NoiseSchedule s = schedule_of(BetaSchedule::cosine, 30);
  const TrainingPair pair{wave({1, 3, 4, 4}), wave({1, 3, 4, 4}, 0.5)};
  const TrainingPair same =
      dreamed({}, *s, pair, at::tensor({20}, at::kLong), pair.target, Predictor());
  CHECK(same.x_t.is_same(pair.x_t));
  CHECK(same.target.is_same(pair.target));
}

TEST_CASE("DREAM for v and for the clean image is refused in diffusers' words") {
  const auto messages = load_fixture("training_utilities/dream").json.at("messages");
  Faults faults;
  check_dream({.enabled = true}, Objective::v, network_name(0), faults);
  check_dream({.enabled = true}, Objective::x_start, network_name(0), faults);
  CHECK_THAT(faults.errors().at(0).text,
             Catch::StartsWith(messages.at("v_prediction").get<std::string>()));
  CHECK_THAT(faults.errors().at(1).text,
             Catch::StartsWith(messages.at("sample").get<std::string>()));
}

TEST_CASE("An augmentation that is off draws nothing and hands on the noise itself") {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3);
  LossPlan plan;
  const NoiseAugmentationDraws none = draw_augmentation(plan, {2, 3, 4, 4}, generator, at::kCPU);
  CHECK_FALSE(none.offset.defined());
  CHECK_FALSE(none.perturbation.defined());
  CHECK(at::equal(at::randn({3}, generator),
                  at::randn({3}, at::make_generator<at::CPUGeneratorImpl>(3))));
  const at::Tensor noise = wave({2, 3, 4, 4});
  CHECK(augmented_noise(plan, noise, none).target.is_same(noise));
  CHECK(augmented_noise(plan, noise, none).input.is_same(noise));
  plan.noise_offset = plan.input_perturbation = 0.1;
  const NoiseAugmentationDraws both = draw_augmentation(plan, {2, 3, 4, 4}, generator, at::kCPU);
  CHECK(both.offset.sizes() == at::IntArrayRef({2, 3, 1, 1}));
  CHECK(both.perturbation.sizes() == at::IntArrayRef({2, 3, 4, 4}));
}

TEST_CASE("Under autocast a pass without gradients keeps no weights for the pass that learns") {
  const at::Tensor weight = wave({4, 4}).requires_grad_();
  const at::Tensor x = wave({2, 4}, 0.5);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  {
    const NoGradPass no_grad;
    CHECK(at::mm(x, weight).scalar_type() == at::kBFloat16);
  }
  const at::Tensor loss = at::mm(x, weight).sum();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  REQUIRE(loss.requires_grad());
  loss.backward();
  CHECK(weight.grad().abs().max().item<double>() > 0);
}

}  // namespace dalle2::test
