// SPDX-License-Identifier: MIT

#include "diffusion/decoder_fixture.h"
#include "diffusion/seeded_generator.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

at::Tensor golden_image() {
  return wave({2, 3, 16, 16}, 0.05, 0, 0.5, 0.5);
}
at::Tensor golden_embeds() {
  return wave({2, 12}, 0.9, 0.3);
}

std::vector<std::string> state_names(const torch::nn::Module& module) {
  std::vector<std::string> names = module.named_parameters().keys();
  for (const auto& name : module.named_buffers().keys()) names.push_back(name);
  return names;
}

}  // namespace

TEST_CASE("The decoder has the reference's entries: unets, schedules, low-resolution schedules") {
  const Decoder single(plan_of(d1_decoder({{"timesteps", 4}})));
  CHECK(state_names(*single).size() == 256);
  const Decoder noisy(plan_of(cascade({{"use_noise_for_lowres_cond", true}})));
  const auto buffers = noisy->named_buffers().keys();
  REQUIRE(buffers.size() == 39);
  CHECK(buffers[0] == "noise_schedulers.0.betas");
  CHECK(buffers[13] == "noise_schedulers.1.betas");
  CHECK(buffers[26] == "lowres_conds.1.noise_scheduler.betas");
  std::vector<std::string> children;
  for (const auto& child : noisy->named_children()) children.push_back(child.key());
  CHECK(children == std::vector<std::string>{"unets", "vaes", "noise_schedulers", "lowres_conds"});
}

TEST_CASE("A dropped unet leaves no entries, and the others keep their numbers") {
  Decoder decoder(plan_of(cascade()));
  decoder->drop_unet(1);
  CHECK(decoder->unet(1) == nullptr);
  for (const std::string& name : decoder->named_parameters().keys())
    CHECK(name.starts_with("unets.1."));
  CHECK(decoder->named_buffers().size() == 26);
  const DecoderInputs inputs{wave({1, 3, 16, 16}), {}, {}};
  CHECK_THROWS_AS(decoder->forward(inputs, 1, generator_of(0)), ConfigError);
  CHECK_THROWS_AS(decoder->sample({}), ConfigError);
  CHECK(decoder->forward(inputs, 2, generator_of(0)).isfinite().item<bool>());
}

TEST_CASE("DDIM at eta 0 is a pure function of the start noise, whatever the generator") {
  Decoder decoder = decoder_of(cascade({{"sample_timesteps", 3}}));
  DecoderSampleOptions options;
  options.init_noise = {wave({1, 3, 8, 8}, 0.83), wave({1, 3, 16, 16}, 0.41)};
  options.generator = generator_of(1);
  const at::Tensor first = decoder->sample(options);
  options.generator = generator_of(2);
  CHECK(at::equal(decoder->sample(options), first));
  options.init_noise.clear();
  const at::Tensor drawn = decoder->sample(options);
  CHECK_FALSE(at::equal(decoder->sample(options), drawn));
  options.generator = generator_of(2);
  CHECK(at::equal(decoder->sample(options), decoder->sample([&] {
    DecoderSampleOptions same = options;
    same.generator = generator_of(2);
    return same;
  }())));
}

TEST_CASE("Each stage tells its steps, one stage behind the other") {
  Decoder decoder = decoder_of(cascade({{"sample_timesteps", 2}}));
  DecoderSampleOptions options;
  options.init_noise = {wave({2, 3, 8, 8}, 0.83), wave({2, 3, 16, 16}, 0.41)};
  options.batch_size = 2;
  std::vector<std::tuple<int64_t, size_t, size_t>> steps;
  options.on_step = [&](int64_t number, size_t step, size_t all) {
    steps.emplace_back(number, step, all);
  };
  CHECK(decoder->sample(options).sizes() == at::IntArrayRef({2, 3, 16, 16}));
  const std::vector<std::tuple<int64_t, size_t, size_t>> expected = {
      {1, 0, 2}, {1, 1, 2}, {2, 0, 2}, {2, 1, 2}};
  CHECK((steps == expected));
}

TEST_CASE("The number of sampling steps decides between DDIM and DDPM") {
  Decoder decoder = decoder_of(cascade({{"sample_timesteps", {3, nullptr}}}));
  std::vector<size_t> steps;
  DecoderSampleOptions options;
  options.on_step = [&](int64_t, size_t step, size_t all) {
    if (step == 0) steps.push_back(all);
  };
  decoder->sample(options);
  CHECK(steps == std::vector<size_t>{3, 25});
  steps.clear();
  options.sample_timesteps = 4;
  decoder->sample(options);
  options.sampler = "dpmpp";
  decoder->sample(options);
  CHECK(steps == std::vector<size_t>{4, 4, 4, 4});
}

TEST_CASE("Sampling runs in eval mode without gradients and leaves the training mode as it was") {
  Decoder decoder = decoder_of(d1_decoder({{"sample_timesteps", 1}}));
  DecoderSampleOptions options;
  options.image_embeds = golden_embeds();
  bool training = true;
  options.on_step = [&](int64_t, size_t, size_t) {
    training = decoder->is_training() || decoder->unet(1)->is_training();
  };
  for (const bool before : {true, false}) {
    decoder->train(before);
    CHECK_FALSE(decoder->sample(options).requires_grad());
    CHECK_FALSE(training);
    CHECK(decoder->is_training() == before);
  }
}

TEST_CASE("Only the unet at work is on the GPU, and all are back afterwards") {
  Decoder decoder = decoder_of(cascade({{"sample_timesteps", 2}}));
  const at::Device device(torch::cuda::is_available() ? at::kCUDA : at::kCPU);
  decoder->to(device);
  const auto home = [&](int64_t number) { return decoder->unet(number)->parameters()[0].device(); };
  DecoderSampleOptions options;
  options.init_noise = {wave({1, 3, 8, 8}, 0.83).to(device), wave({1, 3, 16, 16}, 0.41).to(device)};
  const at::Tensor all_at_home = decoder->sample(options);
  options.one_unet_in_gpu = true;
  int checked = 0;
  options.on_step = [&](int64_t number, size_t, size_t) {
    CHECK(home(number).type() == device.type());
    CHECK(home(3 - number).type() == at::kCPU);  // on the CPU nothing moves at all
    ++checked;
  };
  CHECK(at::equal(decoder->sample(options), all_at_home));
  CHECK(checked == 4);
  for (const int64_t number : {1, 2}) CHECK(home(number).type() == device.type());
}

TEST_CASE("The draws of a step have the stage's shapes and keep to their ranges") {
  Decoder decoder(
      plan_of(cascade({{"use_noise_for_lowres_cond", true}, {"random_crop_sizes", {nullptr, 8}}})));
  at::Generator generator = generator_of(3);
  const DecoderStepNoise first = decoder->draw(5, 1, generator);
  CHECK(first.noise.sizes() == at::IntArrayRef({5, 3, 8, 8}));
  CHECK_FALSE(first.lowres.noise.defined());
  CHECK(first.crop_offsets.empty());
  int64_t highest_level = 0;
  int64_t highest_time = 0;
  std::array<bool, 9> offsets{};
  std::set<std::pair<int64_t, int64_t>> corners;
  for (int i = 0; i < 100; ++i) {
    const DecoderStepNoise d = decoder->draw(5, 2, generator);
    CHECK(d.noise.sizes() == at::IntArrayRef({5, 3, 8, 8}));
    CHECK(d.lowres.noise.sizes() == at::IntArrayRef({5, 3, 16, 16}));
    CHECK(d.times.min().item<int64_t>() >= 0);
    highest_time = std::max(highest_time, d.times.max().item<int64_t>());
    highest_level = std::max(highest_level, d.lowres.noise_level.max().item<int64_t>());
    for (const CropOffset& offset : d.crop_offsets) {
      offsets.at(static_cast<size_t>(offset.x)) = true;
      CHECK(offset.y <= 8);
      corners.emplace(offset.x, offset.y);
    }
  }
  CHECK(highest_time == 24);
  CHECK(highest_level < 1000);
  CHECK(highest_level > 900);
  CHECK(std::all_of(offsets.begin(), offsets.end(), [](bool seen) { return seen; }));
  CHECK(corners.size() > 70);  // of 81; both ways are drawn apart
}

TEST_CASE("Image and text are dropped independently, each with its own probability") {
  json unet = d1_unet();
  unet.update({{"cond_on_text_encodings", true}, {"text_embed_dim", 6}});
  constexpr int64_t kDraws = 10000;
  const auto masks = [&](double image_drop, double text_drop, uint64_t seed) {
    const Decoder decoder(plan_of(d1_decoder({{"unets", {unet}},
                                              {"image_size", 2},
                                              {"image_cond_drop_prob", image_drop},
                                              {"text_cond_drop_prob", text_drop}})));
    const DecoderStepNoise draws = decoder->draw(kDraws, 1, generator_of(seed));
    return std::pair(draws.image_keep_mask.to(at::kDouble), draws.text_keep_mask.to(at::kDouble));
  };
  const auto [image, text] = masks(0.1, 0.5, 3);
  // Three standard deviations of the share of 10,000 draws.
  CHECK(image.mean().item<double>() == Approx(0.9).margin(3 * std::sqrt(0.9 * 0.1 / kDraws)));
  CHECK(text.mean().item<double>() == Approx(0.5).margin(3 * std::sqrt(0.5 * 0.5 / kDraws)));
  const double both = (image * text).mean().item<double>();
  CHECK(both == Approx(0.45).margin(3 * std::sqrt(0.45 * 0.55 / kDraws)));
  const auto [kept, dropped] = masks(0.0, 1.0, 4);
  CHECK(kept.min().item<double>() == 1);
  CHECK(dropped.max().item<double>() == 0);
}

TEST_CASE("Half of the steps of a self-conditioned unet see their own first answer") {
  json unet = d1_unet();
  unet["self_cond"] = true;
  Decoder decoder = decoder_of(d1_decoder({{"unets", {unet}}}));
  at::Generator generator = generator_of(7);
  int used = 0;
  constexpr int kSteps = 1000;
  for (int i = 0; i < kSteps; ++i) used += decoder->draw(1, 1, generator).self_condition ? 1 : 0;
  CHECK(std::abs(used - kSteps / 2) < 3 * std::sqrt(kSteps * 0.25));

  DecoderStepNoise draws = draws_at({3, 17});
  const DecoderInputs inputs{golden_image(), golden_embeds(), {}};
  const float without = decoder->loss(inputs, 1, draws).item<float>();
  draws.self_condition = true;
  CHECK(decoder->loss(inputs, 1, draws).item<float>() != without);
}

}  // namespace dalle2::test
