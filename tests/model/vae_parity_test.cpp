// SPDX-License-Identifier: MIT
// VQGAN-VAEs against the references: random configurations with every gradient.
#include <ATen/autocast_mode.h>

#include "checkpoint/module_state.h"
#include "model/layers.h"
#include "model/vae/quantizer.h"
#include "model/vae/vae_enc_dec.h"
#include "model/vae_support.h"

namespace dalle2::test {
namespace {

int64_t check_gradients(torch::nn::Module& module,
                        const Fixture& fixture,
                        const std::string& prefix) {
  int64_t compared = 0;
  for (const auto& item : module.named_parameters()) {
    const std::string name = prefix + item.key();
    if (!fixture.has(name)) {
      INFO(name);
      const bool has_none =
          !item.value().grad().defined() || item.value().grad().abs().max().item<double>() == 0;
      CHECK((has_none || item.key().starts_with("discr.")));
      continue;
    }
    REQUIRE(item.value().grad().defined());
    expect_within_noise(compact(item.value().grad()), fixture, name, kVaeGradientTolerance);
    ++compared;
  }
  module.zero_grad();
  return compared;
}

void check_codes(VqganVae vae, const Fixture& fixture, const std::string& prefix) {
  for (const auto& item : vae->quantizer()->named_buffers()) {
    const std::string name = prefix + item.key();
    if (!fixture.has(name)) continue;
    if (item.value().scalar_type() == at::kBool) {
      CHECK(item.value().item<bool>() == fixture.tensor(name).item<bool>());
    } else {
      expect_within_noise(item.value(), fixture, name, kVaeTolerance);
    }
  }
}

TEST_CASE("VAEs of random configurations do what the references do") {
  for (const std::string& path : fixture_files(fixture_folder("vae"), 5)) {
    const Fixture fixture = load_fixture(path);
    INFO(path << " " << fixture.json.at("config").dump());
    const VaeConfig config = vae_config_of(fixture.json.at("config"));
    VqganVae vae = filled_vae(config);
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*vae)) names.push_back(name);
    CHECK(names == fixture.json.at("names").get<std::vector<std::string>>());
    set_codebook(vae, fixture.below("codebook."));
    const at::Tensor images = pictures_of(fixture, "images"), more = pictures_of(fixture, "more");
    const auto seed = fixture.json.at("seed").get<uint64_t>();
    const auto generator = [](uint64_t of) { return at::make_generator<at::CPUGeneratorImpl>(of); };

    vae->train();
    at::Generator random = generator(seed);
    const VaeLosses losses = vae->autoencoder_losses(images, features_of(fixture), random);
    vae->quantizer()->learn(random);
    expect_within_noise(losses.total.detach(), fixture, "loss", kVaeTolerance);
    losses.total.backward();
    CHECK(check_gradients(*vae, fixture, "grad.") > 5);
    check_codes(vae, fixture, "codes_1.");

    if (config.use_vgg_and_gan) {
      for (const bool penalty : {true, false}) {
        const std::string name = penalty ? "discr" : "discr_plain";
        random = generator(seed + 1);
        const at::Tensor loss = vae->discriminator_loss(more, random, penalty);
        vae->quantizer()->learn(random);
        expect_within_noise(loss.detach(), fixture, name + ".loss", kVaeTolerance);
        loss.backward();
        CHECK(check_gradients(*vae->discriminator(), fixture, name + ".grad.") > 5);
        for (const auto& item : vae->named_parameters()) CHECK_FALSE(item.value().grad().defined());
      }
      check_codes(vae, fixture, "codes_2.");
    }

    vae->eval();
    const torch::NoGradGuard no_grad;
    const VaeReconstruction made = vae->reconstruct(more);
    CHECK(at::equal(made.quantized.indices, fixture.tensor("indices").to(at::kLong)));
    expect_within_noise(made.images, fixture, "eval.made", kVaeTolerance);
    const at::Tensor map = encoded(vae, more);
    expect_within_noise(map, fixture, "latent", kVaeTolerance);
    expect_within_noise(decoded(vae, map), fixture, "eval.made", kVaeTolerance);
  }
}

TEST_CASE("in fp16 small gradients at the pictures reach the weights") {
  torch::manual_seed(1);
  VqganVae vae(small_vae());
  const at::Tensor images = at::rand({2, 3, 16, 16});
  // Of a network's thousands of features the mean has gradients below what fp16 can hold.
  const ImageFeatures features = [](const at::Tensor& of) { return of.flatten(1) * 1e-3; };
  const auto step = [&] {
    vae->zero_grad();
    const VaeLosses losses = vae->autoencoder_losses(images, features, {}, /*with_gan=*/true);
    losses.total.backward();
    return std::pair(vae->autoencoder()->enc_dec->last_weight().grad().to(at::kFloat).norm(),
                     losses.gan_weight.to(at::kFloat));
  };
  const auto [expected, expected_weight] = step();
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const auto [found, found_weight] = step();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  // fp16 has eleven bits, and a few layers add up their roundings.
  CHECK(found.item<double>() == Approx(expected.item<double>()).epsilon(0.05));
  CHECK(found_weight.item<double>() == Approx(expected_weight.item<double>()).epsilon(0.05));
}

// Norms of a VAE whose maps have a mean of 100 deviations: fixtures of make_group_norm.py.
// Such a map is rounded to 1e-5 of its deviation, and logits are a tenth of what they sum: PyTorch's planar norm in float32 is off by 4e-5,
// its channels-last one by 5e-4 to 1.4e-2, and gradients by 0.03 to 0.2.
constexpr double kFarMeanTolerance = 2e-4;

/// Fills the module, with the fixture's biases before the norms.
void fill_with_far_means(torch::nn::Module& module, const Fixture& fixture) {
  fill_parameters(module);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, bias] : fixture.below("bias."))
    module.named_parameters()[name].copy_(bias);
}

/// Compares gradients of all parameters but the biases before the norms, which change nothing but a mean.
void check_compact_gradients(const torch::nn::Module& module,
                             const std::vector<at::Tensor>& gradients,
                             const Fixture& fixture,
                             const std::string& prefix) {
  size_t number = 0, checked = 0;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& gradient = gradients.at(number++);
    if (fixture.has("bias." + item.key()) || !fixture.has(prefix + item.key())) continue;
    expect_close(compact(gradient.defined() ? gradient : at::zeros_like(item.value())),
                 fixture.tensor(prefix + item.key()),
                 kVaeGradientTolerance,
                 prefix + item.key());
    ++checked;
  }
  CHECK(checked >= 8);
}

template <class Module>
void check_far_means(Module& module, const std::string& name) {
  INFO(name);
  const Fixture fixture = load_fixture("group_norm/" + name);
  fill_with_far_means(module, fixture);
  const at::Tensor x = fixture.tensor("x").requires_grad_();
  const at::Tensor y = module.forward(in_order_for_convolutions(x));
  expect_close(y, fixture.tensor("y"), kFarMeanTolerance, "y");
  std::vector<at::Tensor> inputs = module.parameters();
  inputs.push_back(x);
  const bool has_penalty = !fixture.below("penalty.").empty();
  std::vector<at::Tensor> gradients = torch::autograd::grad(
      {y}, inputs, {fixture.tensor("dy")}, std::nullopt, /*create_graph=*/has_penalty);
  const at::Tensor dx = gradients.back();
  gradients.pop_back();
  inputs.pop_back();
  expect_close(dx, fixture.tensor("dx"), kVaeGradientTolerance, "dx");
  check_compact_gradients(module, gradients, fixture, "grad.");
  if (!has_penalty) return;
  const at::Tensor penalty = (dx.flatten(1).norm(2, 1) - 1).square().mean();
  gradients = torch::autograd::grad({penalty}, inputs, {}, std::nullopt, false, true);
  check_compact_gradients(module, gradients, fixture, "penalty.");
}

TEST_CASE("a block of a VAE keeps the digits of maps whose mean is far from zero") {
  VaeBlockImpl block(32, 8, /*gated=*/false), gated(32, 8, /*gated=*/true);
  check_far_means(block, "block");
  check_far_means(gated, "gated_block");
}

TEST_CASE("a discriminator and its gradient penalty keep the digits of such maps") {
  DiscriminatorImpl discriminator(16, 2, 3);
  check_far_means(discriminator, "discriminator");
}

/// As the definition has it, with a number for each token and code.
CodeEntropies plain_entropies(const at::Tensor& tokens) {
  const at::Tensor codes = sign_codes(tokens.size(1), tokens.options().requires_grad(false));
  const at::Tensor shares = (at::matmul(tokens, codes.t()) * 200).softmax(-1);
  const auto entropy = [](const at::Tensor& p) { return -(p * p.clamp_min(1e-5).log()).sum(-1); };
  return {entropy(shares).mean(), entropy(shares.mean(0))};
}

at::Tensor gradient_of(CodeEntropies (*entropies)(const at::Tensor&), at::Tensor tokens) {
  tokens = tokens.clone().requires_grad_();
  const CodeEntropies found = entropies(tokens);
  (0.7 * found.per_token - 2.5 * found.of_mean).backward();
  return tokens.grad();
}

TEST_CASE("all codes of signs, the highest bit first") {
  const at::Tensor codes = sign_codes(2, at::kDouble);
  CHECK(at::equal(codes, torch::tensor({{-1., -1.}, {-1., 1.}, {1., -1.}, {1., 1.}}, at::kDouble)));
  CHECK(sign_codes(0, at::kDouble).sizes() == at::IntArrayRef({1, 0}));
}

TEST_CASE("the entropies of codes are those of the definition, and so are the gradients") {
  torch::manual_seed(1);
  for (const int64_t bits : {1, 2, 5, 9, 10}) {
    // From tokens that may be any code to such as are nearly sure.
    for (const double size : {1e-4, 3e-3, 1e-2, 0.2}) {
      // More than a slice of ten bits holds, at the last place.
      const at::Tensor tokens = at::randn({bits == 10 ? 600 : 7, bits}, at::kDouble) * size;
      INFO("bits " << bits << ", size " << size);
      const CodeEntropies found = code_entropies(tokens), plain = plain_entropies(tokens);
      CHECK(found.per_token.item<double>() ==
            Approx(plain.per_token.item<double>()).epsilon(1e-9).margin(1e-12));
      CHECK(found.of_mean.item<double>() ==
            Approx(plain.of_mean.item<double>()).epsilon(1e-9).margin(1e-12));
      const at::Tensor gradient = gradient_of(code_entropies, tokens),
                       expected = gradient_of(plain_entropies, tokens);
      CHECK((gradient - expected).abs().max().item<double>() <=
            1e-9 * (1 + expected.abs().max().item<double>()));
    }
  }
}

TEST_CASE("codes begin with the first pass that has vectors") {
  VaeConfig config;
  config.codebook_size = 8;
  config.lookup_free_quantization = false;
  config.vq_codebook_dim = 4;
  VectorQuantizerImpl quantizer(/*dim=*/4, config);
  quantizer.quantize_nothing();  // of a batch that cannot be read
  CHECK(quantizer.codebook().equal(torch::zeros({8, 4})));
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  const at::Tensor map = torch::randn({2, 4, 8, 8}, random);
  quantizer.quantize(map, random);
  const at::Tensor codes = quantizer.codebook();
  CHECK(codes.isfinite().all().item<bool>());
  // They are means of some vectors each: none stays where it was, no two are the same.
  CHECK(codes.abs().sum(1).gt(0).all().item<bool>());
  CHECK(std::get<0>(at::unique_dim(codes, 0)).size(0) == 8);
}

TEST_CASE("a lookup-free quantiser computes its entropies only where gradients are wanted") {
  VaeConfig config;
  config.codebook_size = 16;
  const auto quantizer = make_quantizer(4, config);
  quantizer->train();
  const at::Tensor map = at::randn({2, 4, 3, 3}, at::make_generator<at::CPUGeneratorImpl>(1));
  const Quantized with_gradients = quantizer->quantize(map, {});
  CHECK(with_gradients.loss.item<double>() != 0);
  const torch::NoGradGuard no_grad;
  const Quantized without = quantizer->quantize(map, {});
  CHECK(without.loss.item<double>() == 0);
  CHECK(at::equal(without.map, with_gradients.map));
}

}  // namespace
}  // namespace dalle2::test
