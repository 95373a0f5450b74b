// SPDX-License-Identifier: MIT
#include "trainer/vae_trainer.h"

#include <string>

#include "checkpoint/module_state.h"
#include "model/vae_support.h"

namespace dalle2::test {
namespace {

constexpr int64_t kVaeSteps = 3;  // as in make_vae_trainer.py
// A gradient that is rounding noise becomes a step of up to lr in either direction; what the fixture
// says of noise is on top.
constexpr double kVaeWeightTolerance = 1e-3;

VaeTrainConfig vae_training() {
  VaeTrainConfig config;
  config.device = "cpu";
  config.max_grad_norm = 0.5;
  config.num_train_steps = kVaeSteps;
  return config;
}

TEST_CASE("steps of a VAE's two parts are the references'") {
  for (const std::string& path : fixture_files(fixture_dir("vae_trainer"), 5)) {
    const Fixture fixture = load_fixture(path);
    INFO(path << " " << fixture.json.at("config").dump());
    VqganVae vae = filled_vae(vae_config_of(fixture.json.at("config")));
    set_codebook(vae, fixture.below("codebook."));
    VaeTrainer trainer(vae, vae_training(), features_of(fixture), at::kCPU);
    const at::Generator random =
        at::make_generator<at::CPUGeneratorImpl>(fixture.json.at("seed").get<uint64_t>());
    for (int64_t step = 0; step < kVaeSteps; ++step) {
      const auto batch = [&](int64_t of_part) {
        return fixture.tensor("batch." + std::to_string(2 * step + of_part));
      };
      const VaeLosses losses = trainer.step_autoencoder(batch(0), random, /*with_gan=*/true);
      expect_within_noise(losses.total, fixture, "loss." + std::to_string(step), kVaeTolerance);
      trainer.update(VaeTrainer::kAutoencoder);
      vae->quantizer()->learn(random);
      if (!trainer.has_discriminator()) continue;
      const at::Tensor loss = trainer.step_discriminator(batch(1), random, /*with_penalty=*/true);
      expect_within_noise(loss, fixture, "discr_loss." + std::to_string(step), kVaeTolerance);
      trainer.update(VaeTrainer::kDiscriminator);
      vae->quantizer()->learn(random);
    }
    int64_t compared = 0;
    for (const auto& item : vae->named_parameters()) {
      expect_within_noise(
          compact(item.value()), fixture, "weights." + item.key(), kVaeWeightTolerance);
      ++compared;
    }
    CHECK(compared == std::ssize(fixture.below("weights.")));
    CHECK(compared >= 6);
    for (const auto& item : vae->quantizer()->named_buffers()) {
      if (!fixture.has("codes." + item.key())) continue;
      expect_within_noise(item.value(), fixture, "codes." + item.key(), kVaeWeightTolerance);
    }
  }
}

VaeConfig small_vae(bool gan = true) {
  VaeConfig config;
  config.dim = 16;
  config.layers = 1;
  config.discr_layers = 1;
  config.codebook_size = 16;
  config.use_vgg_and_gan = gan;
  return config;
}

ImageFeatures plain_features() {
  return [](const at::Tensor& images) { return images.flatten(1); };
}

at::Tensor some_pictures(uint64_t seed, int64_t count = 4) {
  return torch::rand({count, 3, 8, 8}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

struct SmallVae {
  explicit SmallVae(const VaeTrainConfig& config, bool gan = true)
      : vae((torch::manual_seed(3), VqganVae(small_vae(gan)))),
        trainer(vae, config, plain_features(), at::kCPU) {}
  void step(uint64_t seed) {
    trainer.step_autoencoder(some_pictures(seed), {}, true);
    trainer.update(1);
    if (!trainer.has_discriminator()) return;
    trainer.step_discriminator(some_pictures(seed + 1), {}, true);
    trainer.update(2);
  }
  VqganVae vae;
  VaeTrainer trainer;
};

TEST_CASE("a VAE's state goes through a file, and both parts go on bit for bit") {
  SmallVae one(vae_training()), other(vae_training());
  one.step(1);
  one.step(3);
  const Value state = one.trainer.state();
  for (const char* key : {"model", "optim", "discr_optim", "steps", "ema"}) {
    INFO(key);
    CHECK(Cursor(state).has(key));
  }
  other.trainer.load_state(state);
  one.step(5);
  other.step(5);
  CHECK(other.trainer.steps(1) == 3);
  CHECK(other.trainer.steps(2) == 3);
  for (const auto& [name, tensor] : state_dict(*one.vae)) {
    INFO(name);
    CHECK(at::equal(*find_tensor(state_dict(*other.vae), name), tensor));
  }
  const at::Tensor images = some_pictures(9);
  CHECK(at::equal(one.trainer.reconstruct(images, true), other.trainer.reconstruct(images, true)));
  CHECK_FALSE(
      at::equal(one.trainer.reconstruct(images, true), one.trainer.reconstruct(images, false)));
}

TEST_CASE("a step trains its own part alone") {
  SmallVae small(vae_training());
  const auto weights = [&](bool of_discriminator) {
    std::vector<at::Tensor> all;
    for (const auto& item : small.vae->named_parameters()) {
      if (item.key().starts_with("discr.") == of_discriminator) {
        all.push_back(item.value().detach().flatten().clone());
      }
    }
    return at::cat(all);
  };
  const at::Tensor own = weights(false), theirs = weights(true);
  small.trainer.step_autoencoder(some_pictures(1), {}, true);
  small.trainer.update(VaeTrainer::kAutoencoder);
  CHECK_FALSE(at::equal(weights(false), own));
  CHECK(at::equal(weights(true), theirs));
  const at::Tensor after = weights(false);
  small.trainer.step_discriminator(some_pictures(2), {}, true);
  small.trainer.update(VaeTrainer::kDiscriminator);
  CHECK(at::equal(weights(false), after));
  CHECK_FALSE(at::equal(weights(true), theirs));
}

TEST_CASE("a VAE in chunks has the gradients of the whole batch") {
  VaeTrainConfig chunked = vae_training();
  chunked.max_batch_size = 2;
  // The adversarial weight is that of each chunk, so it is left out here.
  SmallVae whole(vae_training(), /*gan=*/false), parts(chunked, /*gan=*/false);
  whole.trainer.step_autoencoder(some_pictures(1), {}, false);
  parts.trainer.step_autoencoder(some_pictures(1), {}, false);
  whole.trainer.update(1);
  parts.trainer.update(1);
  CHECK(whole.trainer.last_grad_norm(1).item<double>() ==
        Approx(parts.trainer.last_grad_norm(1).item<double>()).epsilon(1e-4));
  CHECK_FALSE(whole.trainer.has_discriminator());
}

TEST_CASE("a loss of a VAE that is not finite changes nothing") {
  SmallVae small(vae_training());
  small.step(1);
  const StateDict before = [&] {
    StateDict copy;
    for (const auto& [name, tensor] : state_dict(*small.vae))
      copy.emplace_back(name, tensor.clone());
    return copy;
  }();
  at::Tensor images = some_pictures(2);
  images[0][0][0][0] = NAN;
  small.trainer.step_autoencoder(images, {}, true);
  small.trainer.update(1);
  small.trainer.step_discriminator(images, {}, true);
  small.trainer.update(2);
  CHECK(small.trainer.skipped_updates(1).total == 1);
  CHECK(small.trainer.skipped_updates(2).total == 1);
  for (const auto& [name, tensor] : before) {
    INFO(name);
    CHECK(at::equal(*find_tensor(state_dict(*small.vae), name), tensor));
  }
}

}  // namespace
}  // namespace dalle2::test
