// SPDX-License-Identifier: MIT
// The diffusion prior against the reference: golden values, and random configurations with every
// gradient (tests/parity/make_prior.py).

#include <set>

#include "checkpoint/module_state.h"
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

/// Shared parameters once, as Python lists them.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::nn::Module& module) {
  std::set<const void*> seen;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.emplace_back(item.key(), item.value());
  }
  return parameters;
}

void check_gradients(const PriorCase& c) {
  const at::Tensor rows = c.fixture.tensor("grads");
  const at::Tensor noise = c.fixture.tensor("grad_noise");
  const auto parameters = parameters_of(*c.prior->net());
  REQUIRE(static_cast<int64_t>(parameters.size()) == rows.size(0));
  const double largest = rows.select(1, 0).max().item<double>();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const at::Tensor& gradient = parameters[i].second.grad();
    const at::Tensor expected = rows[row].to(at::kDouble);
    const at::Tensor found = digest(gradient.defined() ? gradient : at::zeros({1}));
    const double error = (found - expected).abs().max().item<double>();
    const double norm = expected[0].item<double>();
    const double steps = kNoiseSteps * noise[row].item<double>() + kCancellation * largest;
    INFO("gradient of " << parameters[i].first << ", norm " << norm << ", error " << error
                        << ", noise " << steps);
    CHECK(error <= kGradientTolerance * norm + steps);
  }
}

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
    check_gradients(c);
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

void check_golden(const std::string& name, const json& net) {
  INFO(name);
  const torch::NoGradGuard no_grad;
  DiffusionPrior prior = prior_of(golden_prior(net));
  prior->eval();
  const PriorInputs inputs = golden_inputs();
  const at::Tensor times = torch::tensor({3, 17});
  PriorConditions given;
  given.text_embed = inputs.text.embeds;
  given.text_encodings = inputs.text.encodings;
  expect_golden(prior->net()->forward(inputs.image_embeds, times, given),
                name + ".forward",
                kForwardTolerance);
  expect_golden(prior->net()->forward_with_cond_scale(inputs.image_embeds, times, given, 3.0),
                name + ".cfg3",
                kForwardTolerance);
  PriorSampleOptions options;
  options.text = inputs.text;
  options.noise = prior_wave_noise();
  expect_golden(prior->p_sample_loop(options), name + ".ddpm", kLoopTolerance);
  options.noise = prior_wave_noise();
  options.timesteps = 6;
  expect_golden(prior->p_sample_loop(options), name + ".ddim6", kLoopTolerance);
  PriorStepNoise draws;
  draws.times = times;
  draws.noise = wave({2, 16}, 0.83);
  draws.self_condition = true;
  expect_golden(prior->loss(inputs, draws).reshape({1}), name + ".loss", kForwardTolerance);
}

TEST_CASE("priors P1, P2 and P3 give the golden outputs, losses and loops") {
  check_golden("P1", p1_net());
  check_golden("P2", p2_net());
  check_golden("P3", p3_net());
}

}  // namespace
}  // namespace dalle2::test
