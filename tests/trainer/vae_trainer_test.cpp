// SPDX-License-Identifier: MIT
#include "trainer/vae_trainer.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "checkpoint/module_state.h"
#include "model/vae_support.h"
#include "state_bits.h"
#include "trainer_probe.h"

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
  for (const std::string& path : fixture_files(fixture_folder("vae_trainer"), 5)) {
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
      trainer.learn_codes(VaeTrainer::kAutoencoder, random);
      if (!trainer.has_discriminator()) {
        trainer.end_step();
        continue;
      }
      const at::Tensor loss = trainer.step_discriminator(batch(1), random, /*with_penalty=*/true);
      expect_within_noise(loss, fixture, "discr_loss." + std::to_string(step), kVaeTolerance);
      trainer.update(VaeTrainer::kDiscriminator);
      trainer.learn_codes(VaeTrainer::kDiscriminator, random);
      trainer.end_step();
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

VaeConfig vae_with_codebook() {
  VaeConfig config = small_vae();
  config.lookup_free_quantization = false;
  config.vq_codebook_dim = 8;
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
      : SmallVae(config, small_vae(gan)) {}
  SmallVae(const VaeTrainConfig& config, const VaeConfig& shape)
      : vae((torch::manual_seed(3), VqganVae(shape))),
        trainer(vae, config, plain_features(), at::kCPU) {}
  void step_autoencoder(uint64_t seed, double weight = 1) {
    const auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
    trainer.step_autoencoder(some_pictures(seed), random, true, weight);
    trainer.update(VaeTrainer::kAutoencoder);
    trainer.learn_codes(VaeTrainer::kAutoencoder, random);
  }
  void step_discriminator(uint64_t seed) {
    const auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
    trainer.step_discriminator(some_pictures(seed), random, true);
    trainer.update(VaeTrainer::kDiscriminator);
    trainer.learn_codes(VaeTrainer::kDiscriminator, random);
  }
  void step(uint64_t seed) {
    step_autoencoder(seed);
    if (trainer.has_discriminator()) step_discriminator(seed + 1);
    trainer.end_step();
  }
  std::vector<at::Tensor> codes() const {
    std::vector<at::Tensor> buffers;
    for (const at::Tensor& buffer : vae->quantizer()->buffers()) buffers.push_back(buffer.clone());
    return buffers;
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
  const auto made = [&](SmallVae& by, bool averaged) {
    return by.trainer.evaluate(images, averaged).images;
  };
  CHECK(at::equal(made(one, true), made(other, true)));
  CHECK_FALSE(at::equal(made(one, true), made(one, false)));
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

TEST_CASE("the average takes the codes of the whole step, as ema_pytorch's does") {
  VaeTrainConfig config = vae_training();
  config.ema_update_after_step = 100;  // until then it is a copy
  SmallVae small(config, vae_with_codebook());
  for (uint64_t seed = 1; seed < 6; seed += 2) {
    small.step(seed);
    const Value state = small.trainer.state();
    const StateDict average = Cursor(state).at("ema").as_state_dict();
    int64_t compared = 0;
    for (const auto& [name, tensor] : state_dict(*small.vae)) {
      if (name.find("_codebook") == std::string::npos) continue;
      INFO(name);
      CHECK(at::equal(*find_tensor(average, "0.ema_model." + name), tensor));
      ++compared;
    }
    CHECK(compared == 4);
  }
}

TEST_CASE("averages of a VAE do not depend on when somebody asks for an update's outcome") {
  SmallVae at_once(vae_training(), vae_with_codebook());
  SmallVae later(vae_training(), vae_with_codebook());
  SmallVae asked(vae_training(), vae_with_codebook());
  TrainerProbe::settle_late(later.trainer);
  TrainerProbe::settle_late(asked.trainer);
  for (uint64_t seed = 1; seed < 8; seed += 2) {
    for (SmallVae* small : {&at_once, &later, &asked}) {
      const bool asks = small == &asked;
      small->step_autoencoder(seed);
      if (asks && seed % 4 == 1) small->trainer.ema_decay(1);
      small->step_discriminator(seed + 1);
      if (asks && seed % 4 == 3) small->trainer.steps(2);
      small->trainer.end_step();
      if (asks) small->trainer.steps(1);
    }
  }
  CHECK(TrainerProbe::contents(later.trainer).parts[0]->outcome.pending());
  const std::string expected = bits_of(at_once.trainer);
  CHECK(bits_of(later.trainer) == expected);
  CHECK(bits_of(asked.trainer) == expected);
}

TEST_CASE("a VAE's state in the middle of a step goes on bit for bit") {
  SmallVae whole(vae_training(), vae_with_codebook());
  SmallVae first(vae_training(), vae_with_codebook());
  SmallVae second(vae_training(), vae_with_codebook());
  whole.step(1);
  whole.step(3);
  first.step(1);
  first.step_autoencoder(3);
  second.step(11);  // whatever it had
  second.trainer.load_state(first.trainer.state());
  // The log of the step has yet to say it.
  CHECK(at::equal(second.trainer.last_grad_norm(1), first.trainer.last_grad_norm(1)));
  second.step_discriminator(4);
  second.trainer.end_step();
  CHECK(bits_of(second.trainer) == bits_of(whole.trainer));
  Dict damaged = first.trainer.state();
  damaged.set("open_step", at::zeros({2}));
  CHECK_THROWS_WITH(second.trainer.load_state(damaged, false, true, "a.pth"),
                    "a.pth: /open_step: expected the open steps of 2 parts, [2, 3], got [2]");
  // What waits is forgotten with another state.
  first.trainer.load_state(whole.trainer.state());
  first.step(5);
  whole.step(5);
  CHECK(bits_of(first.trainer) == bits_of(whole.trainer));
}

TEST_CASE("codes learn nothing from an update that is skipped for its gradient") {
  VaeConfig shape = vae_with_codebook();
  shape.vq_threshold_ema_dead_code = GENERATE(0.0, 2.0);
  SmallVae small(vae_training(), shape);
  small.step(1);
  const std::vector<at::Tensor> before = small.codes();
  small.step_autoencoder(3, /*weight=*/1e38);  // the loss is finite
  CHECK(std::isfinite(small.trainer.last_loss(1).item<double>()));
  CHECK(small.trainer.skipped_updates(1).total == 1);
  const std::vector<at::Tensor> after = small.codes();
  for (size_t i = 0; i < before.size(); ++i) CHECK(at::equal(before[i], after[i]));
  small.step_discriminator(4);
  small.trainer.end_step();
  CHECK_FALSE(at::equal(small.codes()[3], before[3]));
}

TEST_CASE("a first batch that is not finite begins no codes") {
  SmallVae small(vae_training(), vae_with_codebook());
  at::Tensor images = some_pictures(1);
  images[0][0][0][0] = NAN;
  small.trainer.step_autoencoder(images, at::make_generator<at::CPUGeneratorImpl>(1), true);
  small.trainer.update(1);
  small.trainer.learn_codes(1, {});
  small.trainer.end_step();
  CHECK(small.trainer.skipped_updates(1).total == 1);
  small.step(3);
  CHECK(small.trainer.skipped_updates(1) == SkippedUpdates{1, 0});
  CHECK_FALSE(small.trainer.non_finite_part());
}

TEST_CASE("a codebook that is not finite is found") {
  SmallVae small(vae_training(), vae_with_codebook());
  CHECK_FALSE(small.trainer.non_finite_part());
  for (at::Tensor& buffer : small.vae->quantizer()->buffers()) {
    if (buffer.is_floating_point()) buffer.view(-1)[0] = NAN;
  }
  CHECK(small.trainer.non_finite_part().value_or("none") == "weights of autoencoder");
}

TEST_CASE("a VAE begins with the weights of muse's own checkpoint, which counts no steps") {
  SmallVae theirs(vae_training()), ours(vae_training());
  theirs.step(1);
  const Value state = theirs.trainer.state();
  Dict file;  // as VQGanVAETrainer.save() writes it
  for (const char* key : {"model", "optim", "discr_optim"})
    file.set(key, *state.as_dict().find(key));
  const Value checkpoint = file;
  const Value weights = *state.as_dict().find("model");
  CHECK_FALSE(ours.trainer.is_begun_by(Cursor(state)));
  CHECK(ours.trainer.is_begun_by(Cursor(weights)));
  REQUIRE(ours.trainer.is_begun_by(Cursor(checkpoint)));
  ours.step(5);
  const int64_t steps = ours.trainer.steps(1);
  ours.trainer.load_base(Cursor(checkpoint).at("model").as_state_dict(), "muse.pt");
  CHECK(ours.trainer.steps(1) == steps);
  for (const auto& [name, tensor] : state_dict(*theirs.vae)) {
    INFO(name);
    CHECK(at::equal(*find_tensor(state_dict(*ours.vae), name), tensor));
  }
  const at::Tensor images = some_pictures(9);
  CHECK(at::equal(ours.trainer.evaluate(images, true).images,
                  ours.trainer.evaluate(images, false).images));
}

/// The largest batch that any convolution has seen while it lived.
class LargestBatch {
 public:
  LargestBatch() {
    largest() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              if (std::string_view(function.name()) == "aten::convolution") {
                largest() = std::max(largest(), function.inputs()[0].toTensor().size(0));
              }
              return nullptr;
            })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~LargestBatch() { at::removeCallback(handle_); }
  static int64_t& largest() {
    thread_local int64_t batch = 0;
    return batch;
  }

 private:
  at::CallbackHandle handle_;
};

TEST_CASE(
    "a VAE is evaluated in chunks, in the config's arithmetic, by its reconstructions alone") {
  const at::Tensor images = some_pictures(1, 5);
  const auto evaluated = [&](std::optional<int64_t> max_batch_size, MixedPrecision precision) {
    VaeTrainConfig config = vae_training();
    config.max_batch_size = max_batch_size;
    config.mixed_precision = precision;
    torch::manual_seed(3);
    VqganVae vae(small_vae());
    VaeTrainer trainer(
        vae,
        config,
        [](const at::Tensor&) -> at::Tensor {
          throw std::logic_error("the perceptual loss has no part in an evaluation");
        },
        at::kCPU);
    const LargestBatch largest;
    const VaeEvaluation evaluation = trainer.evaluate(images, /*averaged=*/false);
    CHECK(LargestBatch::largest() == max_batch_size.value_or(5));
    CHECK(evaluation.images.sizes() == images.sizes());
    CHECK(evaluation.images.scalar_type() == at::kFloat);
    return evaluation.reconstruction_loss.item<double>();
  };
  const double whole = evaluated(std::nullopt, MixedPrecision::no);
  CHECK(evaluated(2, MixedPrecision::no) == Approx(whole).epsilon(1e-5));
  const double half = evaluated(std::nullopt, MixedPrecision::bf16);
  CHECK(half != whole);
  CHECK(half == Approx(whole).epsilon(0.05));
}

TEST_CASE("the gradient penalty of a discriminator is in float32 whatever the precision") {
  const at::Tensor images = some_pictures(1);
  // Of the discriminator's weights, what the penalty alone adds to them.
  const auto of_penalty = [&](MixedPrecision precision) {
    torch::manual_seed(3);
    VqganVae vae(small_vae());
    const auto gradient = [&](bool with_penalty) {
      vae->zero_grad();
      at::Tensor loss;
      {
        const Autocast autocast(at::kCPU, precision);
        loss = vae->discriminator_loss(
            images, at::make_generator<at::CPUGeneratorImpl>(1), with_penalty);
      }
      loss.backward();
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : vae->discriminator()->parameters())
        all.push_back(each.grad().flatten().clone());
      return at::cat(all);
    };
    return gradient(true) - gradient(false);
  };
  const at::Tensor exact = of_penalty(MixedPrecision::no), half = of_penalty(MixedPrecision::bf16);
  const double error = ((half - exact).norm() / exact.norm()).item<double>();
  CAPTURE(error);
  // What is left is the hinge of the real pictures, which goes through bf16 without the penalty.
  CHECK(error < 1e-2);
}

}  // namespace
}  // namespace dalle2::test
