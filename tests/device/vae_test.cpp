// SPDX-License-Identifier: MIT
// Steps of a VAE on a device that is not the CPU. On a CPU its convolutions run over another order of
// the pixels, so numbers are near and not equal.
#include <torch/torch.h>

#include <catch2/catch.hpp>

#include "model/random.h"
#include "model/vae/quantizer.h"
#include "support/fake_device.h"
#include "trainer/state_bits.h"
#include "trainer/vae_trainer.h"

namespace dalle2::test {
namespace {

constexpr double kNear = 1e-4;

VaeConfig vae_shape(bool with_codebook) {
  VaeConfig config;
  config.dim = 16;
  config.layers = 1;
  config.discr_layers = 1;
  config.codebook_size = 16;
  if (with_codebook) {
    config.lookup_free_quantization = false;
    config.vq_codebook_dim = 8;
    config.vq_kmeans_init = true;
  }
  return config;
}

VaeTrainConfig vae_training() {
  VaeTrainConfig config;
  config.max_grad_norm = 0.5;
  config.num_train_steps = 3;
  return config;
}

class DeviceVae {
 public:
  DeviceVae(const VaeConfig& shape, const VaeTrainConfig& config, const at::Device& device)
      : device_(device),
        trainer((torch::manual_seed(3), VqganVae(shape)),
                config,
                [](const at::Tensor& images) { return images.flatten(1); },
                device) {}

  at::Tensor pictures(int64_t seed) const {
    return at::rand({4, 3, 8, 8}, make_generator({seed, "pictures"}, at::kCPU)).to(device_);
  }
  void step(int64_t number, at::Tensor images = {}, at::Tensor others = {}, double weight = 1) {
    if (!images.defined()) images = pictures(2 * number);
    if (!others.defined()) others = pictures(2 * number + 1);
    const at::Generator random = make_generator({0, "train", 0, number}, device_);
    trainer.step({.autoencoder = {{[=] { return images; }, random, {weight}}},
                  .discriminator = {{[=] { return others; }, random}},
                  .codes = random,
                  .discriminator_codes = random,
                  .with_penalty = true});
  }
  double validation_loss() {
    return trainer.evaluate(pictures(90), /*averaged=*/true).reconstruction_loss.item<double>();
  }

 private:
  at::Device device_;

 public:
  VaeTrainer trainer;
};

TEST_CASE("a VAE trains on the fake device as on the CPU, and goes on from its state") {
  const VaeConfig shape = vae_shape(GENERATE(false, true));
  DeviceVae on_cpu(shape, vae_training(), at::kCPU);
  DeviceVae on_fake(shape, vae_training(), fake_device());
  DeviceVae resumed(shape, vae_training(), fake_device());
  for (int64_t number = 0; number < 2; ++number) {
    on_cpu.step(number);
    on_fake.step(number);
    for (const int64_t part : on_cpu.trainer.trained_parts()) {
      CHECK(on_fake.trainer.last_loss(part).item<double>() ==
            Approx(on_cpu.trainer.last_loss(part).item<double>()).epsilon(kNear));
    }
  }
  CHECK(on_fake.validation_loss() == Approx(on_cpu.validation_loss()).epsilon(kNear));
  resumed.trainer.load_state(on_fake.trainer.state());
  on_fake.step(2);
  resumed.step(2);
  CHECK(bits_of(resumed.trainer) == bits_of(on_fake.trainer));
}

TEST_CASE("the average of a skipped autoencoder stays, though the discriminator moves the codes") {
  VaeTrainConfig config = vae_training();
  config.ema_update_after_step = 100;  // until then it is a copy
  DeviceVae vae(vae_shape(true), config, fake_device());
  vae.step(0);
  const auto codes_of = [&](const std::string& prefix, const char* entry) {
    const Value state = vae.trainer.state();
    const StateDict weights = Cursor(state).at(entry).as_state_dict();
    for (const auto& [name, tensor] : weights) {
      if (name.starts_with(prefix) && name.ends_with("_codebook.embed"))
        return tensor.cpu().clone();
    }
    throw std::runtime_error("no codes");
  };
  const at::Tensor average = codes_of("0.ema_model.", "ema"), live = codes_of("", "model");
  CHECK(at::equal(average, live));
  vae.step(1, {}, {}, /*weight=*/1e38);  // the loss is finite, its gradient is not
  CHECK(vae.trainer.skipped_updates(VaeTrainer::kAutoencoder).total == 1);
  CHECK(vae.trainer.skipped_updates(VaeTrainer::kDiscriminator).total == 0);
  CHECK_FALSE(at::equal(codes_of("", "model"), live));
  CHECK(at::equal(codes_of("0.ema_model.", "ema"), average));
}

TEST_CASE("a step of a VAE stalls nothing") {
  VaeConfig shape = vae_shape(GENERATE(false, true));
  shape.vq_threshold_ema_dead_code = GENERATE(0.0, 2.0);
  VaeTrainConfig config = vae_training();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16);
  DeviceVae vae(shape, config, fake_device());
  vae.step(0);
  vae.step(1);
  const at::Tensor images = vae.pictures(80), others = vae.pictures(81);
  const FakeDeviceCounts counts = counts_of([&] { vae.step(2, images, others); });
  CAPTURE(shape.lookup_free_quantization, shape.vq_threshold_ema_dead_code, counts.text());
  CHECK(counts.stalls() == 0);
  CHECK(counts.host_waits <= 2);  // for the previous updates of both parts
  CHECK(counts.unsafe_frees == 0);
  CHECK(counts.operations <= 810);
}

TEST_CASE("the entropies of many codes take as many operations for 64 tokens as for 8") {
  const auto operations = [](int64_t tokens) {
    const at::Tensor bits = at::randn({tokens, 16}, make_generator({1, "bits"}, at::kCPU))
                                .to(fake_device())
                                .requires_grad_();
    return counts_of([&] { code_entropies(bits).per_token.backward(); }).operations;
  };
  CHECK(operations(64) == operations(8));
}

}  // namespace
}  // namespace dalle2::test
