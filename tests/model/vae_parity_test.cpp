// SPDX-License-Identifier: MIT
// VQGAN-VAEs against the references: golden values, and random configurations with every gradient.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <string>

#include "checkpoint/module_state.h"
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

/// The VAEs of the golden values: codes on the unit sphere, ready.
VqganVae golden_vae(VaeConfig config) {
  VqganVae vae = filled_vae(config);
  const torch::NoGradGuard no_grad;
  for (const auto& item : vae->named_buffers()) {
    if (item.key().ends_with("initted")) item.value().fill_(true);
    if (!item.key().ends_with("embed") && !item.key().ends_with("embed_avg")) continue;
    const at::Tensor codes = wave(item.value().sizes(), 1.3, 0.7);
    item.value().copy_(codes / codes.norm(2, -1, true));
  }
  vae->eval();
  return vae;
}

std::vector<int64_t> first_indices(const at::Tensor& indices) {
  const at::Tensor some = indices[0].flatten().narrow(0, 0, 16).contiguous();
  return {some.data_ptr<int64_t>(), some.data_ptr<int64_t>() + some.numel()};
}

TEST_CASE("VAEs of both kinds give the golden values") {
  const torch::NoGradGuard no_grad;
  const at::Tensor images = wave({2, 3, 32, 32}, 0.05, 0.0, 0.5, 0.5);
  VaeConfig theirs;
  theirs.kind = VaeKind::dalle2;
  theirs.dim = 16;
  theirs.image_size = 32;
  theirs.layers = 2;
  theirs.vq_codebook_size = 8;
  theirs.vq_codebook_dim = 6;
  theirs.use_vgg_and_gan = false;
  theirs.encdec_attn_dim_head = 4;
  theirs.encdec_attn_heads = 2;
  VqganVae v1 = golden_vae(theirs);
  const at::Tensor map = encoded(v1, images);
  expect_golden(map, "V1.encode", kVaeTolerance);
  expect_golden(decoded(v1, map), "V1.decode", kVaeTolerance);
  CHECK(first_indices(v1->reconstruct(images).quantized.indices) ==
        golden("V1.idx").get<std::vector<int64_t>>());

  theirs.layers = 1;
  theirs.vq_codebook_dim = 16;
  theirs.vae_type = VaeNetworkType::vit;
  theirs.encdec_dim_head = 4;
  theirs.encdec_heads = 2;
  VqganVae v3 = golden_vae(theirs);
  expect_golden(encoded(v3, images), "V3.encode", kVaeTolerance);
  expect_golden(decoded(v3, encoded(v3, images)), "V3.decode", kVaeTolerance);

  VaeConfig ours;
  ours.dim = 16;
  ours.layers = 2;
  ours.codebook_size = 16;
  ours.discr_layers = 2;
  VqganVae m1 = golden_vae(ours);
  const VaeReconstruction made = m1->reconstruct(images);
  expect_golden(made.quantized.map, "M1.quantized", kVaeTolerance);
  CHECK(first_indices(made.quantized.indices) == golden("M1.idx").get<std::vector<int64_t>>());
  expect_golden(made.images, "M1.recon", kVaeTolerance);
  expect_golden(m1->discriminator()->forward(images), "M1.discr", kVaeTolerance);
  m1->train();
  const at::AutoGradMode with_graph(true);  // without one the loss is not made
  expect_golden(
      m1->reconstruct(images).quantized.loss.reshape({1}), "M1.aux_loss(train)", kVaeTolerance);
}

TEST_CASE("in fp16 small gradients at the pictures reach the weights") {
  VaeConfig config;
  config.dim = 16;
  config.layers = 1;
  config.discr_layers = 1;
  config.codebook_size = 16;
  torch::manual_seed(1);
  VqganVae vae(config);
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

}  // namespace
}  // namespace dalle2::test
