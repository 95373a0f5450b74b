// SPDX-License-Identifier: MIT
#include "trainer/vae_trainer.h"

#include <ATen/record_function.h>

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
      const auto batch = [&](int64_t of_part) -> std::vector<VaeBatch> {
        const at::Tensor images =
            pictures_of(fixture, "batch." + std::to_string(2 * step + of_part));
        return {{[images] { return images; }, random}};
      };
      VaeGroups groups{.autoencoder = batch(0),
                       .codes = random,
                       .discriminator_codes = random,
                       .with_penalty = true};
      if (trainer.has_discriminator()) groups.discriminator = batch(1);
      const std::vector<VaeLosses> losses = trainer.step(groups);
      expect_within_noise(
          losses.at(0).total, fixture, "loss." + std::to_string(step), kVaeTolerance);
      if (!trainer.has_discriminator()) continue;
      expect_within_noise(trainer.last_loss(VaeTrainer::kDiscriminator),
                          fixture,
                          "discr_loss." + std::to_string(step),
                          kVaeTolerance);
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

VaeConfig vae_without_gan() {
  VaeConfig config = small_vae();
  config.use_vgg_and_gan = false;
  return config;
}

ImageFeatures plain_features() {
  return [](const at::Tensor& images) { return images.flatten(1); };
}

at::Tensor some_pictures(uint64_t seed, int64_t count = 4) {
  return torch::rand({count, 3, 8, 8}, at::make_generator<at::CPUGeneratorImpl>(seed));
}

struct SmallVae {
  explicit SmallVae(const VaeTrainConfig& config, const VaeConfig& shape = small_vae())
      : vae((torch::manual_seed(3), VqganVae(shape))),
        trainer(vae, config, plain_features(), at::kCPU) {}
  std::vector<VaeLosses> step_on(const at::Tensor& images,
                                 const at::Tensor& others = {},
                                 uint64_t seed = 1,
                                 double weight = 1) {
    const auto random = [](uint64_t of) { return at::make_generator<at::CPUGeneratorImpl>(of); };
    VaeGroups groups{.autoencoder = {{[=] { return images; }, random(seed), {weight}}},
                     .codes = random(seed),
                     .discriminator_codes = random(seed + 1),
                     .with_penalty = true};
    if (others.defined()) groups.discriminator = {{[=] { return others; }, random(seed + 1)}};
    return trainer.step(groups);
  }
  void step(uint64_t seed) {
    const bool both = trainer.has_discriminator();
    step_on(some_pictures(seed), both ? some_pictures(seed + 1) : at::Tensor(), seed);
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
  other.trainer.load_state(state);
  one.step(5);
  other.step(5);
  CHECK(other.trainer.steps(1) == 3);
  CHECK(other.trainer.steps(2) == 3);
  expect_equal(state_dict(*other.vae), state_dict(*one.vae));
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
      if (item.key().starts_with("discr.") == of_discriminator)
        all.push_back(item.value().detach().flatten().clone());
    }
    return at::cat(all);
  };
  const at::Tensor own = weights(false), theirs = weights(true);
  small.step_on(some_pictures(1));
  CHECK_FALSE(at::equal(weights(false), own));
  CHECK(at::equal(weights(true), theirs));
  const at::Tensor after = weights(false);
  small.step_on(some_pictures(3), some_pictures(2));
  CHECK_FALSE(at::equal(weights(false), after));
  CHECK_FALSE(at::equal(weights(true), theirs));
}

TEST_CASE("a VAE in chunks has the gradients of the whole batch") {
  VaeTrainConfig chunked = vae_training();
  chunked.max_batch_size = 2;
  // The adversarial weight is that of each chunk, so it is left out here.
  SmallVae whole(vae_training(), vae_without_gan()), parts(chunked, vae_without_gan());
  whole.step_on(some_pictures(1));
  parts.step_on(some_pictures(1));
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
  small.step_on(images, images);
  CHECK(small.trainer.skipped_updates(1).total == 1);
  CHECK(small.trainer.skipped_updates(2).total == 1);
  expect_equal(state_dict(*small.vae), before);
}

TEST_CASE("the average takes the codes of the whole step, as ema_pytorch's does") {
  VaeTrainConfig config = vae_training();
  config.ema_update_after_step = 100;  // until then it is a copy
  SmallVae small(config, small_vae(/*with_codebook=*/true));
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

TEST_CASE("updates of a VAE that are settled later, as on a GPU, are the same bit for bit") {
  SmallVae at_once(vae_training(), small_vae(/*with_codebook=*/true));
  SmallVae later(vae_training(), small_vae(/*with_codebook=*/true));
  TrainerProbe::settle_late(later.trainer);
  for (uint64_t seed = 1; seed < 8; seed += 2) {
    at_once.step(seed);
    later.step(seed);
    if (seed == 3) later.trainer.steps(1);
  }
  CHECK(TrainerProbe::contents(later.trainer).parts[0]->outcome.pending());
  CHECK(bits_of(later.trainer) == bits_of(at_once.trainer));
}

TEST_CASE("codes learn nothing from an update that is skipped for its gradient") {
  VaeConfig shape = small_vae(/*with_codebook=*/true);
  shape.vq_threshold_ema_dead_code = GENERATE(0.0, 2.0);
  SmallVae small(vae_training(), shape);
  small.step(1);
  const std::vector<at::Tensor> before = small.codes();
  small.step_on(some_pictures(3), {}, /*seed=*/3, /*weight=*/1e38);  // the loss is finite
  CHECK(std::isfinite(small.trainer.last_loss(1).item<double>()));
  CHECK(small.trainer.skipped_updates(1).total == 1);
  const std::vector<at::Tensor> after = small.codes();
  for (size_t i = 0; i < before.size(); ++i) CHECK(at::equal(before[i], after[i]));
  small.step_on(some_pictures(3), some_pictures(4), /*seed=*/3, /*weight=*/1e38);
  CHECK(small.trainer.skipped_updates(1).total == 2);
  CHECK_FALSE(at::equal(small.codes()[3], before[3]));  // by the discriminator's update
}

TEST_CASE("a first batch that is not finite begins no codes") {
  SmallVae small(vae_training(), small_vae(/*with_codebook=*/true));
  at::Tensor images = some_pictures(1);
  images[0][0][0][0] = NAN;
  small.step_on(images);
  CHECK(small.trainer.skipped_updates(1).total == 1);
  small.step(3);
  CHECK(small.trainer.skipped_updates(1) == SkippedUpdates{1, 0});
  CHECK_FALSE(small.trainer.non_finite_part());
}

TEST_CASE("a codebook that is not finite is found") {
  SmallVae small(vae_training(), small_vae(/*with_codebook=*/true));
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
  CHECK_FALSE(is_weights_alone(Cursor(state)));
  CHECK(is_weights_alone(Cursor(weights)));
  REQUIRE(is_weights_alone(Cursor(checkpoint)));
  ours.step(5);
  const int64_t steps = ours.trainer.steps(1);
  ours.trainer.load_base(Cursor(checkpoint).at("model").as_state_dict(), "muse.pt");
  CHECK(ours.trainer.steps(1) == steps);
  expect_equal(state_dict(*ours.vae), state_dict(*theirs.vae));
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
              if (std::string_view(function.name()) == "aten::convolution")
                largest() = std::max(largest(), function.inputs()[0].toTensor().size(0));
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

TEST_CASE("a VAE is evaluated in chunks, in the config's arithmetic, by reconstructions alone") {
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
