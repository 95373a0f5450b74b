// SPDX-License-Identifier: MIT
// The diffusion prior against the reference: random configurations with every
// gradient (tests/parity/make_prior.py).
#include <fmt/ranges.h>

#include "base/hash.h"
#include "checkpoint/module_state.h"
#include "config/prior/prior_run_config.h"
#include "diffusion/decoder_case.h"
#include "diffusion/prior_fixture.h"

namespace dalle2::test {
namespace {

using nlohmann::json;

// fp32 kernels of two libraries sum in other orders: 1e-6 or so a layer, some ten layers.
constexpr double kForwardTolerance = 1e-4;
// A loop feeds its own error to the network again at every step.
constexpr double kLoopTolerance = 1e-3;

struct PriorCase {
  explicit PriorCase(const std::string& path)
      : fixture(load_fixture(path)), prior(prior_of(fixture.json["prior"])) {}

  TextEmbedding text() const {
    return {fixture.tensor("text_embeds"),
            fixture.has("text_encodings") ? fixture.tensor("text_encodings") : at::Tensor()};
  }
  PriorStepNoise draws() const {
    PriorStepNoise d;
    d.times = fixture.tensor("times");
    d.noise = fixture.tensor("noise");
    d.text_keep_mask = fixture.tensor("text_keep");
    d.image_keep_mask = fixture.tensor("image_keep");
    d.self_condition = fixture.tensor("self_condition").item<bool>();
    return d;
  }

  Fixture fixture;
  DiffusionPrior prior;
};

void check_network(const PriorCase& c) {
  const torch::NoGradGuard no_grad;
  DiffusionPrior prior = c.prior;
  prior->eval();
  PriorConditions given;
  given.text_embed = c.text().embeds;
  given.text_encodings = c.text().encodings;
  const at::Tensor noised = wave(given.text_embed.sizes(), 0.9, 0.4, 1.5);
  if (prior->plan().config.net.self_cond) given.self_cond = wave(noised.sizes(), 0.21);
  const at::Tensor times = c.fixture.tensor("times");
  const auto net = prior->net();
  expect_close(
      net->forward(noised, times, given), c.fixture.tensor("net.out"), kForwardTolerance, "net");
  expect_close(net->forward_with_cond_scale(noised, times, given, 2.5),
               c.fixture.tensor("net.cfg"),
               kForwardTolerance,
               "guidance");
}

TEST_CASE("State dicts of random priors have the reference's names in its order", "[parity]") {
  for (const std::string& path : fixture_files(fixture_folder("prior"), 12)) {
    const PriorCase c(path);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*c.prior)) names.push_back(name);
    CHECK(names == c.fixture.json["names"].get<std::vector<std::string>>());
    int64_t count = 0;
    for (const auto& [name, tensor] : parameters_of(*c.prior)) count += tensor.numel();
    CHECK(count == c.fixture.json["num_parameters"].get<int64_t>());
  }
}

TEST_CASE("Outputs, losses and gradients of random priors equal the reference's", "[parity]") {
  for (const std::string& path : fixture_files(fixture_folder("prior"), 12)) {
    const PriorCase c(path);
    INFO(path << "\n" << c.fixture.json["prior"].dump());
    check_network(c);
    DiffusionPrior prior = c.prior;
    prior->train();
    const PriorInputs inputs = {c.fixture.tensor("image_embeds"), c.text()};
    const at::Tensor before = inputs.image_embeds.clone();
    const at::Tensor loss = prior->loss(inputs, c.draws());
    CHECK(at::equal(inputs.image_embeds, before));
    const double expected = c.fixture.json["loss"].get<double>();
    const double noise = kNoiseSteps * c.fixture.json["loss_noise"].get<double>();
    CHECK(std::abs(loss.item<double>() - expected) <=
          std::max(kForwardTolerance * std::abs(expected), noise));
    loss.backward();
    expect_gradients(*c.prior->net(), c.fixture.tensor("grads"), c.fixture.tensor("grad_noise"));
  }
}

TEST_CASE("Sampling loops of random priors, and their choice, equal the reference's", "[parity]") {
  for (const std::string& path : fixture_files(fixture_folder("prior"), 12)) {
    const PriorCase c(path);
    const json& sampling = c.fixture.json["sampling"];
    INFO(path << "\n" << c.fixture.json["prior"].dump() << "\n" << sampling.dump());
    DiffusionPrior prior = c.prior;
    PriorSampleOptions options;
    options.text = c.text();
    options.cond_scale = sampling["cond_scale"].get<double>();
    options.noise = prior_wave_noise();
    options.num_samples_per_text = sampling["candidates"].get<int64_t>();
    const at::Tensor best = prior->sample(options);
    if (!sampling["timesteps"].is_null()) options.timesteps = sampling["timesteps"].get<int64_t>();
    options.noise = prior_wave_noise();
    const at::Tensor loop = prior->p_sample_loop(options);
    const double largest = c.fixture.tensor("loop").abs().max().item<double>();
    const double tolerance = std::max(
        kLoopTolerance, kNoiseSteps * c.fixture.json["sample_noise"].get<double>() / largest);
    expect_close(loop, c.fixture.tensor("loop"), tolerance, "p_sample_loop");
    expect_close(best, c.fixture.tensor("best"), tolerance, "sample");
  }
}

// Decoders and priors of older versions of dalle2-pytorch: outputs, losses and samples as those versions computed
// them (tests/parity/make_versions.py).
// Parts of the largest value. Sums are in another order: 1e-6 of a value in some ten layers.
constexpr double kOutputs = 1e-5;
// The step at the noisiest time divides by sqrt(acp), and each step repeats the error of those before.
constexpr double kSamples = 2e-4;

// Ten updates by Adam, of which each repeats the error of those before.
constexpr double kTraining = 1e-4;

/// The losses of training on, with the optimizer of make_versions.py. [updates]
at::Tensor losses_of_training(const torch::nn::Module& network,
                              const std::function<at::Tensor()>& loss_of) {
  const at::AutoGradMode with_grad(true);
  torch::optim::Adam optimizer(network.parameters(),
                               torch::optim::AdamOptions(1e-3).betas({0.9, 0.99}).eps(1e-3));
  std::vector<at::Tensor> losses;
  for (int update = 0; update < 10; ++update) {
    const at::Tensor loss = loss_of();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return at::stack(losses);
}

/// The cases of a kind. @param prefix of their names
std::vector<std::string> cases_of(const std::string& prefix) {
  std::vector<std::string> files = fixture_files(fixture_folder("versions"), 4);
  std::erase_if(
      files, [&](const std::string& path) { return path.find("/" + prefix) == std::string::npos; });
  REQUIRE(files.size() >= 2);
  return files;
}

void expect_same(const Fixture& fixture,
                 const std::string& name,
                 const at::Tensor& found,
                 double part) {
  expect_close(found, fixture.tensor(name), part, name);
}

/// Names and shapes of a state dict in their order, as one number.
std::string names_fnv1a(const torch::nn::Module& module) {
  Fnv1a<uint64_t> hash;
  for (const auto& [name, tensor] : state_dict(module))
    hash.add_line(fmt::format("{} {}", name, fmt::join(tensor.sizes(), ",")));
  return hash.hex();
}

json with_rest(const char* kind, const Fixture& fixture, json data) {
  return {{kind, fixture.json[kind]},
          {"written_by", fixture.json["written_by"]},
          {"data", std::move(data)},
          {"train", json::object()},
          {"evaluate", json::object()},
          {"tracker",
           {{"log", {{"log_type", "console"}}},
            {"save", json::array({{{"save_to", "local"}, {"save_latest_to", "latest.pth"}}})}}}};
}

DecoderInputs decoder_inputs() {
  DecoderInputs inputs = {wave({2, 3, 16, 16}, 0.05, 0.3, 0.5, 0.5),
                          wave({2, 12}, 0.9, 0.3),
                          wave({2, 4, 5}, 0.5, 0.1)};
  inputs.text_encodings[1].slice(0, 2).zero_();
  return inputs;
}

DecoderStepNoise decoder_draws(const Decoder& decoder, int64_t number, const Fixture& fixture) {
  const int64_t side = decoder->plan().stages[static_cast<size_t>(number - 1)].image_size;
  DecoderStepNoise draws;
  draws.times = fixture.tensor("times");
  draws.noise = wave({2, 3, side, side}, 0.83, 0.5, 1.2);
  draws.image_keep_mask = draws.text_keep_mask = at::ones({2}, at::kBool);
  draws.lowres = {
      .blur = true, .blur_sigma = 0.6, .blur_kernel_size = 3, .noise = {}, .noise_level = {}};
  return draws;
}

void check_stage(Decoder& decoder, int64_t number, const Fixture& fixture) {
  const std::string at = fmt::format("unet{}.", number);
  const UnetPlan& plan = decoder->plan().stages[static_cast<size_t>(number - 1)];
  const int64_t side = plan.image_size;
  const at::Tensor& times = fixture.tensor("times");
  const DecoderInputs inputs = decoder_inputs();
  UnetConditions given;
  if (number == 1) {
    given.image_embed = inputs.image_embeds;
    given.text_encodings = inputs.text_encodings;
  } else {
    given.lowres_cond_img = wave({2, 3, side, side}, 0.21, 0.4);
  }
  const at::Tensor x = wave({2, 3, side, side}, 0.17, 0.2);
  for (const int scale : {1, 2}) {
    expect_same(fixture,
                fmt::format("{}output{}", at, scale),
                decoder->unet(number)->forward_with_cond_scale(x, times, given, scale),
                kOutputs);
  }
  decoder->train();
  expect_same(fixture,
              at + "loss",
              decoder->loss(inputs, number, decoder_draws(decoder, number, fixture)),
              kOutputs);
  decoder->eval();
}

TEST_CASE("decoders of older versions compute what those versions computed") {
  for (const std::string& path : cases_of("decoder_")) {
    const Fixture fixture = load_fixture(path);
    INFO(path << "\n" << fixture.json.dump());
    const json config = with_rest("decoder",
                                  fixture,
                                  {{"webdataset_base_url", "shards/{}.tar"},
                                   {"img_embeddings_url", "embeddings"},
                                   {"text_embeddings_url", "texts"},
                                   {"splits", {{"train", 1.0}, {"val", 0.0}, {"test", 0.0}}}});
    Decoder decoder(parse_decoder_config(config.dump(), path, {}).plan);
    for (const int64_t unet : {1, 2}) {
      const json& names = fixture.json["names_fnv1a"][static_cast<size_t>(unet - 1)];
      CHECK(names_fnv1a(*decoder->unet(unet)) == names.get<std::string>());
      fill_parameters(*decoder->unet(unet));
    }
    decoder->eval();
    const torch::NoGradGuard no_grad;
    for (const int64_t unet : {1, 2}) check_stage(decoder, unet, fixture);
    for (const auto& [name, steps] : {std::pair("sample.ddpm", 0), std::pair("sample.ddim", 4)}) {
      if (!fixture.has(name)) continue;
      DecoderSampleOptions options;
      options.image_embeds = decoder_inputs().image_embeds;
      options.text_encodings = decoder_inputs().text_encodings;
      options.cond_scale = 2.0;
      if (steps > 0) options.sample_timesteps = std::optional<int64_t>(steps);
      options.noise = wave_noise();
      expect_same(fixture, name, decoder->sample(options), kSamples);
    }
    decoder->train();
    const DecoderInputs inputs = decoder_inputs();
    const DecoderStepNoise draws = decoder_draws(decoder, 1, fixture);
    const auto loss = [&] { return decoder->loss(inputs, 1, draws); };
    expect_same(fixture, "training.losses", losses_of_training(*decoder->unet(1), loss), kTraining);
  }
}

TEST_CASE("priors of older versions compute what those versions computed") {
  for (const std::string& path : cases_of("prior_")) {
    const Fixture fixture = load_fixture(path);
    INFO(path << "\n" << fixture.json.dump());
    const json config = with_rest("prior",
                                  fixture,
                                  {{"image_url", "images"},
                                   {"text_url", "texts"},
                                   {"text_encodings_url", "encodings"},
                                   {"batch_size", 2},
                                   {"splits", {{"train", 0.8}, {"val", 0.1}, {"test", 0.1}}}});
    DiffusionPrior prior(parse_prior_config(config.dump(), path, {}).plan);
    CHECK(names_fnv1a(*prior->net()) == fixture.json["names_fnv1a"][0].get<std::string>());
    fill_parameters(*prior->net());
    prior->eval();
    const torch::NoGradGuard no_grad;
    TextEmbedding text{wave({2, 16}, 0.77, 0.2), wave({2, 5, 16}, 0.5, 0.1)};
    if (fixture.json["padded"].get<bool>()) text.encodings[0].slice(0, 3).zero_();
    PriorConditions given;
    given.text_embed = text.embeds;
    given.text_encodings = text.encodings;
    const at::Tensor image = wave({2, 16}, 0.31);
    const at::Tensor& times = fixture.tensor("times");
    for (const int scale : {1, 2}) {
      expect_same(fixture,
                  fmt::format("output{}", scale),
                  prior->net()->forward_with_cond_scale(image, times, given, scale),
                  kOutputs);
    }
    PriorStepNoise draws;
    draws.times = times;
    draws.noise = wave({2, 16}, 0.83, 0.5, 1.2);
    draws.text_keep_mask = draws.image_keep_mask = at::ones({2}, at::kBool);
    expect_same(fixture, "loss", prior->loss({image, text}, draws), kOutputs);
    for (const auto& [name, steps] : {std::pair("sample.ddpm", 0), std::pair("sample.ddim", 4)}) {
      if (!fixture.has(name)) continue;
      PriorSampleOptions options;
      options.text = text;
      options.cond_scale = fixture.json["guidance"].get<double>();
      if (steps > 0) options.timesteps = steps;
      options.noise = prior_wave_noise();
      expect_same(fixture, name, prior->p_sample_loop(options), kSamples);
    }
    prior->train();
    const auto loss = [&] { return prior->loss({image, text}, draws); };
    expect_same(fixture, "training.losses", losses_of_training(*prior->net(), loss), kTraining);
  }
}

}  // namespace
}  // namespace dalle2::test
