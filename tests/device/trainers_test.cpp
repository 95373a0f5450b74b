// SPDX-License-Identifier: MIT
// Steps of the trainers on a device that is not the CPU: the same bits, and nothing that waits.
#include <ATen/Parallel.h>

#include "checkpoint/pickle/pth.h"
#include "model/vae/quantizer.h"
#include "model/vae_support.h"
#include "support/fake_device.h"
#include "support/temp_dir.h"
#include "support/tiny_clip.h"
#include "trainer/clip_trainer.h"
#include "trainer/prior_trainer_fixture.h"
#include "trainer/vae_trainer.h"

namespace dalle2::test {
namespace {

/// Of all tests of this program: lanes share a batch of the CPU, and not of the fake device.
const bool computes_in_one_lane = [] {
  at::set_num_threads(1);
  return true;
}();

using nlohmann::json;

/// What a step may cost the host. The ceiling of its operations is some five per cent above what they were on
/// 2026-11-25: each is a launch on a GPU, so a change that needs more of them should know. Of the previous update it learns by an event.
void expect_no_stall(const FakeDeviceCounts& counts, int64_t most_operations) {
  INFO(counts.text());
  CHECK(counts.stalls() == 0);
  CHECK(counts.host_waits <= 1);
  CHECK(counts.unsafe_frees == 0);
  CHECK(counts.operations > 0);
  CHECK(counts.operations <= most_operations);
}

template <class Group>
Group on_fake_device(Group group) {
  return on_device(std::move(group), fake_device());
}

TEST_CASE("a decoder's training on the fake device has the CPU's bits") {
  const TrainerFixture fixture(GENERATE("cascade", "masked"));
  DecoderTrainConfig config = fixture.train_config();
  config.max_batch_size = GENERATE(std::optional<int64_t>(), std::optional<int64_t>(2));
  const auto on_cpu = fixture.trainer(config), on_fake = fixture.trainer(config, fake_device());
  train(*on_cpu, 0, 5, 3);
  train(*on_fake, 0, 5, 3);
  CHECK(bits_of(*on_fake) == bits_of(*on_cpu));
}

TEST_CASE("a decoder goes on from its state on another device") {
  const DecoderTrainConfig config = cascade().train_config();
  const auto whole = cascade().trainer(config), first = cascade().trainer(config, fake_device());
  train(*whole, 0, 6);
  train(*first, 0, 3);
  for (const at::Device& device : {at::Device(at::kCPU), fake_device()}) {
    const auto second = cascade().trainer(config, device);
    second->load_state(first->state());
    train(*second, 3, 6);
    CHECK(bits_of(*second) == bits_of(*whole));
  }
}

TEST_CASE("a step of a decoder stalls nothing") {
  DecoderTrainConfig config = cascade().train_config();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16, MixedPrecision::fp16);
  const auto trainer = cascade().trainer(config, fake_device());
  const DecoderInputs inputs = on_fake_device(drawn_inputs(2, 1));
  for (const int64_t unet : {1, 2}) {
    const auto step = [&] {
      trainer->step(inputs, unet, make_generator({0, "train", 0, 1}, fake_device()));
      trainer->update(unet);
    };
    step();  // makes what is made once
    CAPTURE(unet, static_cast<int>(*config.mixed_precision));
    expect_no_stall(counts_of(step), *config.mixed_precision == MixedPrecision::no ? 820 : 1140);
  }
}

TEST_CASE("a step with every option of a unet stalls nothing") {
  json config = cascade().data().json.at("config");
  for (json& unet : config["decoder"]["unets"]) {
    unet["dim"] = 8;
    unet["dim_mults"] = {1, 2};
    unet["self_attn"] = {false, true};
    unet["combine_upsample_fmaps"] = unet["self_cond"] = unet["cosine_sim_cross_attn"] = true;
    unet["sparse_attn"] = unet["cross_embed_downsample"] = true;
  }
  config["decoder"]["random_crop_sizes"] = {nullptr, 8};
  config["decoder"]["use_noise_for_lowres_cond"] = true;
  const LoadedDecoderConfig loaded = parse_decoder_config(config.dump(), "test.json", {});
  torch::manual_seed(1);
  DecoderTrainer trainer(Decoder(loaded.plan), loaded.config.train, fake_device());
  const DecoderInputs inputs = on_fake_device(drawn_inputs(2, 1));
  for (const int64_t unet : {1, 2}) {
    for (int64_t number = 0; number < 4; ++number) {  // half of them condition on themselves
      const auto counts = counts_of([&] {
        trainer.step(inputs, unet, make_generator({0, "train", 0, number}, fake_device()));
        trainer.update(unet);
      });
      if (number > 0) expect_no_stall(counts, 1800);
    }
  }
}

TEST_CASE("a snapshot waits for the device once, and has what was there when it was taken") {
  const auto trainer = cascade().trainer(cascade().train_config(), fake_device());
  train(*trainer, 0, 2);
  const std::string expected = bits_of(*trainer);
  const Value state = trainer->state();
  PthSnapshot snapshot;
  const auto counts = counts_of([&] { snapshot.take(state); });
  INFO(counts.text());
  CHECK(counts.downloads > 10);
  CHECK(counts.stalls() == 0);
  CHECK(counts.host_waits == 1);
  train(*trainer, 2, 4);
  const TempDir folder;
  snapshot.write(folder / "snapshot.pth", ReadBack::kNo);
  std::string found;
  append_bits(read_pth(folder / "snapshot.pth"), found);
  CHECK(found == expected);
}

TEST_CASE("page-locked memory of a snapshot is little more than what it holds") {
  const auto trainer = cascade().trainer(cascade().train_config(), fake_device());
  train(*trainer, 0, 2);
  const Value state = trainer->state();
  int64_t bytes = 0;
  PthSnapshot whole(int64_t{1} << 40);
  CHECK(counts_of([&] { whole.take(state); }).pinned_bytes > 0);
  {
    const TempDir folder;
    whole.write(folder / "state.pth", ReadBack::kNo);
    bytes = static_cast<int64_t>(std::filesystem::file_size(folder / "state.pth"));
  }
  PthSnapshot in_pieces(/*piece_bytes=*/int64_t{1} << 16);
  const FakeDeviceCounts first = counts_of([&] { in_pieces.take(state); });
  CAPTURE(bytes, first.pinned_bytes);
  CHECK(first.pinned_bytes < bytes * 11 / 10);
  CHECK(counts_of([&] { in_pieces.take(state); }).pinned_bytes == 0);  // used again
}

/// diffusers' average, which may lie in host memory between steps.
DecoderTrainConfig with_offload(const TrainerFixture& fixture, bool offload) {
  DecoderTrainConfig config = fixture.train_config();
  config.ema.kind = EmaKind::diffusers;
  config.ema.offload = offload;
  return config;
}

TEST_CASE("an average in host memory costs two copies in the background, and no bit") {
  const auto resident = cascade().trainer(with_offload(cascade(), false), fake_device());
  const auto offloaded = cascade().trainer(with_offload(cascade(), true), fake_device());
  const DecoderInputs inputs = on_fake_device(drawn_inputs(2, 1));
  const auto step = [&](DecoderTrainer& trainer) {
    return counts_of([&] {
      trainer.step(inputs, 1, make_generator({0, "train", 0, 1}, fake_device()));
      trainer.update(1);
    });
  };
  FakeDeviceCounts of_resident, of_offloaded;
  for (int64_t number = 0; number < 3; ++number) {
    of_resident = step(*resident);
    of_offloaded = step(*offloaded);
  }
  expect_no_stall(of_offloaded, 810);
  CHECK(of_offloaded.uploads == of_resident.uploads + 1);
  CHECK(of_offloaded.downloads == of_resident.downloads + 1);
  CHECK(bits_of(*offloaded) == bits_of(*resident));
  const auto resumed = cascade().trainer(with_offload(cascade(), true), fake_device());
  resumed->load_state(offloaded->state());
  train(*resumed, 3, 5);
  train(*offloaded, 3, 5);
  CHECK(bits_of(*resumed) == bits_of(*offloaded));
}

TEST_CASE("a prior's training on the fake device has the CPU's bits") {
  const PriorTrainerFixture fixture(GENERATE("adamw", "adam"));
  const PriorTrainConfig config = fixture.train_config();
  const auto on_cpu = fixture.trainer(config), on_fake = fixture.trainer(config, fake_device());
  for (int64_t step = 0; step < 4; ++step) {
    on_cpu->step(drawn_prior_inputs(3, step), make_generator({0, "train", 0, step}, at::kCPU));
    on_fake->step(drawn_prior_inputs(3, step),
                  make_generator({0, "train", 0, step}, fake_device()));
    on_cpu->update();
    on_fake->update();
  }
  CHECK(bits_of(*on_fake) == bits_of(*on_cpu));
  const auto resumed = fixture.trainer(config, fake_device());
  resumed->load_state(on_cpu->state());
  train(*on_cpu, 4, 6);
  train(*resumed, 4, 6);
  CHECK(bits_of(*resumed) == bits_of(*on_cpu));
}

TEST_CASE("a step of a prior stalls nothing") {
  const PriorTrainerFixture fixture(GENERATE("adamw", "adam"));
  PriorTrainConfig config = fixture.train_config();
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16);
  const auto trainer = fixture.trainer(config, fake_device());
  const PriorInputs inputs = on_fake_device(drawn_prior_inputs(3, 1));
  const auto step = [&] {
    trainer->step(inputs, make_generator({0, "train", 0, 1}, fake_device()));
    trainer->update();
  };
  step();
  expect_no_stall(counts_of(step), *config.mixed_precision == MixedPrecision::no ? 475 : 620);
}

TEST_CASE("a step of a CLIP stalls nothing, in one piece or in chunks") {
  ClipTrainConfig config;
  config.mixed_precision = GENERATE(MixedPrecision::no, MixedPrecision::bf16);
  config.max_batch_size = GENERATE(std::optional<int64_t>(), std::optional<int64_t>(2));
  ClipTrainer trainer(std::make_shared<ClipImpl>(tiny_clip()), config, fake_device());
  at::Tensor tokens = at::zeros({4, 6}, at::kLong);
  tokens.select(1, 0).fill_(518);
  tokens.select(1, 5).fill_(519);
  const ClipInputs inputs{at::rand({4, 3, 8, 8}).to(fake_device()), tokens.to(fake_device())};
  const auto step = [&] {
    trainer.step({inputs});
    trainer.update();
  };
  step();
  const bool casts = *config.mixed_precision != MixedPrecision::no;
  expect_no_stall(counts_of(step),
                  config.max_batch_size ? (casts ? 820 : 566) : (casts ? 337 : 252));
}

// Steps of a VAE on a device that is not the CPU. On a CPU its convolutions run over another order of
// the pixels, so numbers are near and not equal.
constexpr double kNear = 1e-4;

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
  const VaeConfig shape = small_vae(GENERATE(false, true));
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
  DeviceVae vae(small_vae(true), config, fake_device());
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
  VaeConfig shape = small_vae(GENERATE(false, true));
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
