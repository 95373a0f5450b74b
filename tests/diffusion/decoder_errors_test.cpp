// SPDX-License-Identifier: MIT
// What the decoder refuses, and that it says where, what was expected, what was found.
#include "base/error.h"

#include "diffusion/decoder/lowres_conditioner.h"
#include "diffusion/decoder_fixture.h"
#include "diffusion/seeded_generator.h"
#include "support/message_of.h"

namespace dalle2::test {

namespace {

using nlohmann::json;

at::Generator any_generator() {
  return at::make_generator<at::CPUGeneratorImpl>(0);
}

template <class Problem>
void expect_refusal(const std::function<void()>& call, const std::vector<std::string>& parts) {
  const std::string text = message_of<Problem>(call);
  INFO(text);
  for (const std::string& part : parts) CHECK(text.find(part) != std::string::npos);
}

Decoder text_decoder() {
  json unet = d1_unet();
  unet["cond_on_text_encodings"] = true;
  unet["text_embed_dim"] = 6;
  return Decoder(plan_of(d1_decoder({{"unets", {unet}}})));
}

Decoder two_stages(const json& more = json::object()) {
  return Decoder(plan_of(cascade(more)));
}

}  // namespace

TEST_CASE("Training inputs that do not fit are refused with both figures") {
  Decoder decoder(plan_of(d1_decoder()));
  const at::Tensor embeds = wave({2, 12});
  const auto train = [&](const DecoderInputs& inputs, int64_t number = 1) {
    return [&decoder, inputs, number] { decoder->forward(inputs, number, any_generator()); };
  };
  expect_refusal<DataError>(train({wave({2, 3, 8, 16}), embeds, {}}),
                            {"16 x 16", "8 x 16", "preprocessing"});
  expect_refusal<DataError>(train({wave({2, 1, 16, 16}), embeds, {}}),
                            {"[batch, 3,", "[2, 1, 16, 16]", "channels"});
  expect_refusal<DataError>(train({wave({2, 3, 16, 16}), {}, {}}),
                            {"image embeddings", "12", "unconditional"});
  expect_refusal<DataError>(train({wave({2, 3, 16, 16}), wave({3, 12}), {}}), {"2 images", "3"});
  expect_refusal<ConfigError>(train({wave({2, 3, 16, 16}), embeds, {}}, 2),
                              {"unet number 2", "1 to 1"});
}

TEST_CASE("Text encodings are required if and only if a unet is conditioned on text") {
  Decoder with_text = text_decoder();
  Decoder without(plan_of(d1_decoder()));
  const DecoderInputs bare{wave({2, 3, 16, 16}), wave({2, 12}), {}};
  DecoderInputs worded = bare;
  worded.text_encodings = wave({2, 4, 6});
  expect_refusal<DataError>([&] { with_text->forward(bare, 1, any_generator()); },
                            {"text encodings", "got none"});
  expect_refusal<DataError>([&] { without->forward(worded, 1, any_generator()); },
                            {"text encodings", "expected none", "[2, 4, 6]"});
  CHECK(with_text->forward(worded, 1, any_generator()).isfinite().item<bool>());

  DecoderSampleOptions options;
  options.sample_timesteps = 1;
  options.image_embeds = wave({2, 12});
  expect_refusal<DataError>([&] { with_text->sample(options); }, {"text encodings", "got none"});
  options.text_encodings = wave({2, 4, 6});
  expect_refusal<DataError>([&] { without->sample(options); }, {"expected none"});
  options.text_encodings = wave({1, 4, 6});
  expect_refusal<DataError>([&] { with_text->sample(options); }, {"2 samples", "1"});
}

TEST_CASE("Guidance is refused by every sampler if the decoder never saw dropped conditioning") {
  Decoder decoder(plan_of(d1_decoder()));
  for (const char* sampler : {"auto", "ddpm", "ddim", "dpmpp"}) {
    DecoderSampleOptions options;
    options.image_embeds = wave({1, 12});
    options.sampler = sampler;
    options.cond_scale = 2.0;
    expect_refusal<ConfigError>([&] { decoder->sample(options); },
                                {"cond_scale", "conditional dropout"});
  }
  DecoderSampleOptions options;
  options.image_embeds = wave({1, 12});
  options.cond_scale = std::vector<double>{1.0, 1.0};
  expect_refusal<ConfigError>([&] { decoder->sample(options); },
                              {"cond_scale", "1 unets", "got 2"});
  options.cond_scale = 1.0;
  options.cfg_rescale = 1.5;
  expect_refusal<ConfigError>([&] { decoder->sample(options); }, {"cfg_rescale", "0 to 1", "1.5"});
}

TEST_CASE("Impossible first and last stages are refused") {
  Decoder decoder = two_stages();
  const auto sample = [&](int64_t start, std::optional<int64_t> stop, const at::Tensor& image) {
    DecoderSampleOptions options;
    options.sample_timesteps = 1;
    options.start_at_unet = start;
    options.stop_at_unet = stop;
    options.image = image;
    return [&decoder, options] { decoder->sample(options); };
  };
  expect_refusal<ConfigError>(sample(0, {}, {}), {"1 to 2", "got 0"});
  expect_refusal<ConfigError>(sample(1, 3, {}), {"1 to 2", "3"});
  expect_refusal<ConfigError>(sample(2, 1, wave({1, 3, 8, 8})), {"got 2 and 1"});
  expect_refusal<ConfigError>(sample(2, {}, {}), {"an image is needed", "output of unet 1"});
  expect_refusal<DataError>(sample(2, {}, wave({1, 4, 8, 8})),
                            {"--image", "[1, 3,", "[1, 4, 8, 8]"});
}

TEST_CASE("Text encodings are asked for only by a sampling of unets that take them") {
  json lower = d1_unet(), upper = d1_unet();
  lower.update({{"cond_on_text_encodings", true}, {"text_embed_dim", 6}});
  upper.erase("image_embed_dim");
  Decoder decoder = two_stages({{"unets", {lower, upper}}, {"unconditional", false}});
  DecoderSampleOptions options;
  options.sample_timesteps = 1;
  options.image_embeds = wave({1, 12});
  options.image = wave({1, 3, 8, 8});
  expect_refusal<DataError>([&] { decoder->sample(options); },
                            {"text encodings: expected [batch, length, width], got none"});
  options.start_at_unet = 2;
  options.image_embeds = at::Tensor();
  CHECK(decoder->sample(options).sizes() == at::IntArrayRef({1, 3, 16, 16}));
}

TEST_CASE("Inpainting needs image and mask that fit each other, and a sampler that can repeat") {
  Decoder decoder(plan_of(d1_decoder({{"unconditional", true}})));
  DecoderSampleOptions options;
  options.inpaint_image = wave({1, 3, 16, 16});
  const auto sample = [&] { decoder->sample(options); };
  expect_refusal<ConfigError>(sample, {"inpainting", "only the image"});
  std::swap(options.inpaint_image, options.inpaint_mask);
  expect_refusal<ConfigError>(sample, {"inpainting", "only the mask"});
  options.inpaint_image = wave({1, 3, 16, 16});
  options.inpaint_mask = at::ones({1, 8, 16}, at::kBool);
  expect_refusal<DataError>(sample, {"--inpaint-mask", "[1, 16, 16]", "[1, 8, 16]"});
  options.inpaint_image = wave({2, 3, 16, 16});
  expect_refusal<DataError>(sample, {"--inpaint-image", "[1, 3, height, width]", "[2, 3, 16, 16]"});
  options.inpaint_image = wave({1, 3, 16, 16});
  options.inpaint_mask = at::ones({1, 16, 16}, at::kBool);
  options.inpaint_resample_times = 0;
  expect_refusal<ConfigError>(sample, {"at least 1 pass", "got 0"});
  options.inpaint_resample_times = 1;
  options.sampler = "dpmpp";
  expect_refusal<ConfigError>(sample, {"dpmpp", "ddpm or ddim"});
}

TEST_CASE("Samplers and numbers of steps that do not exist are refused") {
  Decoder decoder(plan_of(d1_decoder({{"unconditional", true}})));
  const auto sample = [&](const std::string& sampler, std::optional<int64_t> steps) {
    DecoderSampleOptions options;
    options.sampler = sampler;
    options.sample_timesteps = steps;
    return [&decoder, options] { decoder->sample(options); };
  };
  expect_refusal<ConfigError>(sample("euler", {}), {"ddim", "\"euler\""});
  expect_refusal<ConfigError>(sample("auto", 31), {"unet 1", "1 to 30", "31"});
  expect_refusal<ConfigError>(sample("auto", 0), {"1 to 30", "got 0"});
  expect_refusal<ConfigError>(sample("dpmpp", 30), {"1 to 29", "30"});
  expect_refusal<ConfigError>(sample("ddpm", 5), {"ddpm", "all 30", "got 5"});
}

TEST_CASE("Each stage takes as many steps as it is told to") {
  Decoder decoder = two_stages();
  DecoderSampleOptions options;
  std::vector<size_t> told(2);
  options.on_step = [&](int64_t unet, size_t, size_t steps) {
    told.at(static_cast<size_t>(unet - 1)) = steps;
  };
  options.sample_timesteps = std::vector<int64_t>{3, 2};
  decoder->sample(options);
  CHECK(told == std::vector<size_t>{3, 2});
  CHECK(decoder->sample_steps(2, options) == 2);
  options.sample_timesteps = std::vector<int64_t>{1, 2, 3};
  expect_refusal<ConfigError>(
      [&] { decoder->sample(options); },
      {"sample timesteps", "one value or one for each of the 2 unets", "got 3"});
  options.sample_timesteps = std::vector<int64_t>{3, 5000};
  expect_refusal<ConfigError>([&] { decoder->sample(options); }, {"unet 2", "5000"});
  options.steps_name = "--timesteps";
  expect_refusal<ConfigError>([&] { decoder->check_sample_options(options); },
                              {"--timesteps of unet 2: expected 1 to "});
}

TEST_CASE("Start noise has to fit the sampled stages") {
  Decoder decoder = two_stages();
  DecoderSampleOptions options;
  options.sample_timesteps = 1;
  options.init_noise = {wave({1, 3, 8, 8})};
  expect_refusal<ConfigError>([&] { decoder->sample(options); }, {"2 sampled unets", "got 1"});
  options.init_noise.push_back(wave({1, 3, 8, 8}));
  expect_refusal<DataError>([&] { decoder->sample(options); },
                            {"--init-noise of unet 2", "[1, 3, 16, 16]", "[1, 3, 8, 8]"});
}

TEST_CASE("A network that predicts noise is not asked where nothing of the image is left") {
  Decoder decoder = two_stages(
      {{"beta_schedule", {"jsd", "jsd"}}, {"learned_variance", false}, {"sample_timesteps", 3}});
  DecoderSampleOptions options;
  options.sampler = "ddpm";
  options.sample_timesteps = 25;
  expect_refusal<ConfigError>([&] { decoder->sample(options); },
                              {"unet 1", "nothing of the image"});
  options.sampler = "auto";
  options.sample_timesteps = 4;
  CHECK(decoder->sample(options).isfinite().all().item<bool>());
}

TEST_CASE("The Gaussian blur equals the reference's, borders included") {
  const Fixture f = load_fixture("diffusion/formulas");
  for (const int64_t kernel : {3, 5, 7}) {
    const auto sigma = f.json["blur_sigma"][std::to_string(kernel)].get<double>();
    expect_close(gaussian_blur(f.tensor("blur.image"), kernel, sigma),
                 f.tensor("blur." + std::to_string(kernel)),
                 1e-6,
                 "blur");
  }
}

TEST_CASE("Values outside the range of the data are clamped, each range its own") {
  const at::Tensor image = wave({1, 1, 16, 16}, 0.05, 0, 3.0);
  LowresOptions options;
  options.use_blur = false;
  for (const bool auto_normalize : {true, false}) {
    options.range.auto_normalize = auto_normalize;
    const at::Tensor out = LowresConditioner(options)->forward(image, 8, 4, {}).image;
    CHECK(out.min().item<double>() == (auto_normalize ? 0.0 : -1.0));
    CHECK(out.max().item<double>() == 1.0);
  }
}

TEST_CASE("Blur draws keep to the probability and the ranges, and kernels are odd") {
  LowresOptions options;
  options.blur_prob = 0.3;
  options.blur_sigma = std::vector<double>{0.4, 1.2};
  options.blur_kernel_size = std::vector<int64_t>{3, 7};
  LowresConditioner conditioner(options);
  at::Generator generator = generator_of(1);
  int blurred = 0;
  std::set<int64_t> kernels;
  double low = 9, high = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    const LowresDraws draws = conditioner->draw_blur(generator);
    blurred += draws.blur ? 1 : 0;
    kernels.insert(draws.blur_kernel_size);
    low = std::min(low, draws.blur_sigma);
    high = std::max(high, draws.blur_sigma);
  }
  CHECK(std::abs(blurred - 0.3 * kDraws) < 3 * std::sqrt(0.3 * 0.7 * kDraws));
  CHECK(kernels == std::set<int64_t>{3, 5, 7});
  CHECK(low >= 0.4);
  CHECK(low < 0.45);
  CHECK(high <= 1.2);
  CHECK(high > 1.15);
}

TEST_CASE("Noise comes from a linear schedule of 1000 levels that is in the state dict") {
  LowresOptions options;
  options.use_blur = false;
  options.use_noise = true;
  LowresConditioner conditioner(options);
  CHECK(conditioner->named_buffers().keys().front() == "noise_scheduler.betas");
  CHECK(conditioner->named_buffers().size() == 13);
  CHECK(conditioner->named_buffers()["noise_scheduler.alphas_cumprod"][500].item<double>() ==
        Approx(0.0777967).epsilon(1e-5));
  CHECK(LowresConditioner(LowresOptions{})->named_buffers().is_empty());
}

}  // namespace dalle2::test
