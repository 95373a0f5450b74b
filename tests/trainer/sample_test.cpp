// SPDX-License-Identifier: MIT

#include "trainer/tensor_group.h"
#include "trainer/trained_part.h"
#include "trainer_fixture.h"

namespace dalle2 {
namespace {

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

/// A trainer whose averages are not its weights.
std::unique_ptr<DecoderTrainer> trained(const test::TrainerFixture& fixture, bool use_ema = true) {
  DecoderTrainConfig config = fixture.train_config();
  config.use_ema = use_ema;
  auto trainer = fixture.trainer(config);
  for (const int64_t unet : {1, 2}) {
    for (int64_t step = 0; step < 4; ++step) {
      trainer->step(
          test::drawn_inputs(2, step), unet, make_generator({0, "train", 0, step}, at::kCPU));
      trainer->update(unet);
    }
  }
  return trainer;
}

/// Two DDIM steps from given noise: a pure function of the weights.
DecoderSampleOptions sample_options(int64_t batch) {
  DecoderSampleOptions options;
  options.image_embeds = test::wave({batch, 8}, 0.9);
  options.init_noise = {test::wave({batch, 3, 8, 8}, 1.7), test::wave({batch, 3, 16, 16}, 2.3)};
  options.sample_timesteps = 2;
  options.generator = make_generator({0, "sample"}, at::kCPU);
  return options;
}

TEST_CASE("sampling uses the averages and puts the weights and the mode back bit for bit") {
  const auto trainer = trained(test::cascade());
  const std::string before = test::bits_of(*trainer);
  const auto network = trainer->decoder()->unet(1);

  const at::Tensor averaged = trainer->sample(sample_options(2));
  CHECK(averaged.sizes() == at::IntArrayRef({2, 3, 16, 16}));
  CHECK(test::bits_of(*trainer) == before);
  CHECK(trainer->decoder()->unet(1) == network);
  CHECK(trainer->decoder()->is_training());

  const at::Tensor live = trainer->sample(sample_options(2), /*use_non_ema=*/true);
  CHECK_FALSE(at::equal(averaged, live));
  // The same by hand: the averaged weights in the live network.
  const torch::NoGradGuard no_grad;
  trainer->decoder()->eval();
  for (const int64_t unet : {1, 2}) {
    const auto own = trainer->decoder()->unet(unet)->named_parameters();
    for (const auto& item : TrainerProbe::averaged(*trainer, unet))
      own[item.key()].copy_(item.value());
  }
  CHECK(at::equal(trainer->decoder()->sample(sample_options(2)), averaged));
}

TEST_CASE("sampling that fails puts the weights and the mode back too") {
  const auto trainer = trained(test::cascade());
  const std::string before = test::bits_of(*trainer);
  DecoderSampleOptions options = sample_options(2);
  options.image_embeds = at::Tensor();
  CHECK_THROWS_AS(trainer->sample(options), Error);
  CHECK(test::bits_of(*trainer) == before);
  CHECK(trainer->decoder()->is_training());
}

TEST_CASE("without averages sampling uses the weights") {
  const auto with = trained(test::cascade()), without = trained(test::cascade(), /*use_ema=*/false);
  CHECK_FALSE(without->uses_ema());
  CHECK_FALSE(without->ema_decay(1).has_value());
  CHECK(TrainerProbe::averaged(*without, 1).is_empty());
  CHECK(at::equal(without->sample(sample_options(1)),
                  with->sample(sample_options(1), /*use_non_ema=*/true)));
}

TEST_CASE("unconditional sampling gives as many images as asked for") {
  nlohmann::json json = test::cascade().data().json.at("config");
  json["decoder"]["unconditional"] = true;
  for (auto& unet : json["decoder"]["unets"]) {
    unet["cond_on_image_embeds"] = false;
    unet.erase("image_embed_dim");
  }
  const LoadedDecoderConfig config = parse_decoder_config(json.dump(), "unconditional.json", {});
  DecoderTrainer trainer(Decoder(config.plan), config.config.train, at::kCPU);
  DecoderSampleOptions options;
  options.batch_size = 5;
  options.sample_timesteps = 2;
  options.generator = make_generator({0, "sample"}, at::kCPU);
  CHECK(trainer.sample(options).size(0) == 5);
  options.batch_size = 0;
  CHECK_THROWS_AS(trainer.sample(options), ConfigError);
}

Pairs cut(int64_t batch, std::optional<int64_t> max_batch_size) {
  Pairs pairs;
  for (const ChunkRange& range : chunk_ranges(batch, max_batch_size))
    pairs.emplace_back(range.begin, range.length);
  return pairs;
}

TEST_CASE("a batch is cut into chunks of at most the size asked for") {
  CHECK(cut(5, 2) == Pairs{{0, 2}, {2, 2}, {4, 1}});
  CHECK(cut(4, 2) == Pairs{{0, 2}, {2, 2}});
  CHECK(cut(5, std::nullopt) == Pairs{{0, 5}});
  CHECK(cut(3, 8) == Pairs{{0, 3}});
  CHECK(chunk_ranges(0, 2).empty());
}

TEST_CASE("a chunk of draws has its own rows and the decisions of the batch") {
  DecoderStepNoise draws;
  draws.times = at::arange(5);
  draws.noise = test::wave({5, 3, 4, 4});
  draws.self_condition = true;
  draws.crop_offsets = {{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}};
  draws.lowres.blur = true;
  draws.lowres.blur_sigma = 0.7;
  draws.lowres.noise_level = at::arange(5, 10);
  draws.augmentation.offset = test::wave({5, 3, 1, 1});
  draws.augmentation.perturbation = test::wave({5, 3, 4, 4}, 0.5);
  const DecoderStepNoise chunk = chunk_of(draws, {3, 2});
  CHECK(at::equal(chunk.times, at::tensor({3, 4}, at::kLong)));
  CHECK(at::equal(chunk.noise, draws.noise.slice(0, 3, 5)));
  CHECK(at::equal(chunk.lowres.noise_level, at::tensor({8, 9}, at::kLong)));
  CHECK(at::equal(chunk.augmentation.offset, draws.augmentation.offset.slice(0, 3, 5)));
  CHECK(at::equal(chunk.augmentation.perturbation, draws.augmentation.perturbation.slice(0, 3, 5)));
  CHECK(chunk.self_condition);
  CHECK(chunk.lowres.blur);
  CHECK(chunk.lowres.blur_sigma == 0.7);
  REQUIRE(chunk.crop_offsets.size() == 2);
  CHECK(chunk.crop_offsets[0].x == 6);
  CHECK(chunk.crop_offsets[1].y == 9);
}

TEST_CASE("a chunk of sample options has its own conditions, noise and batch size") {
  DecoderSampleOptions options;
  options.image_embeds = test::wave({5, 8});
  options.init_noise = {test::wave({5, 3, 8, 8}), test::wave({5, 3, 16, 16})};
  const DecoderSampleOptions chunk = chunk_of(options, {4, 1});
  CHECK(chunk.batch_size == 1);
  CHECK(at::equal(chunk.image_embeds, options.image_embeds.slice(0, 4, 5)));
  CHECK(at::equal(chunk.init_noise[1], options.init_noise[1].slice(0, 4, 5)));
  CHECK(sample_batch(options) == 5);
  CHECK(sample_batch({}) == 1);
}

TEST_CASE("every tensor of a group goes to the device, starting noise too") {
  DecoderSampleOptions options;
  options.image_embeds = at::ones({2, 8});
  options.inpaint_mask = at::ones({2, 4, 4}, at::kBool);
  options.init_noise = {at::ones({2, 3, 4, 4}), at::ones({2, 3, 8, 8})};
  const DecoderSampleOptions moved = on_device(options, at::kMeta);
  CHECK(moved.image_embeds.is_meta());
  CHECK(moved.inpaint_mask.is_meta());
  CHECK_FALSE(moved.text_encodings.defined());
  for (const at::Tensor& noise : moved.init_noise) CHECK(noise.is_meta());
  CHECK(options.init_noise[0].is_cpu());
}

TrainedPart part_of(const std::shared_ptr<torch::nn::Module>& network) {
  const PartOptions options{{}, {.base_lr = 1e-2}, std::numeric_limits<double>::infinity()};
  return {{.prefix = "", .network = network, .options = options}, trained_parameters(*network)};
}

/// Forward and backward of a batch that is one pass.
void run_pass(TrainedPart& part, const std::function<at::Tensor()>& loss) {
  part.backward(Pass{}, part.forward(Pass{}, loss));
}

TEST_CASE("a backward pass fills the gradients of its part") {
  const auto network = std::make_shared<torch::nn::LinearImpl>(3, 2);
  TrainedPart part = part_of(network);
  run_pass(part, [&] { return network->forward(at::ones({1, 3})).sum(); });
  CHECK(at::equal(network->weight.grad(), at::ones({2, 3})));
}

TEST_CASE("with a loss scale the moments are of the unscaled gradient") {
  const auto network = std::make_shared<torch::nn::LinearImpl>(3, 2);
  {
    const torch::NoGradGuard no_grad;  // outputs far from 0, where fp16 would have few digits
    network->weight.copy_(torch::tensor({{0.3, -0.2, 0.1}, {-0.25, 0.4, -0.35}}));
    network->bias.copy_(torch::tensor({0.2, -0.1}));
  }
  TrainedPart part = part_of(network);
  part.scaler.emplace(at::kCPU);
  part.scaler->set_state(1024, 0);
  // The gradient of the sum of squares, in float32 by hand.
  const at::Tensor x = torch::tensor({{0.5, -1.0, 2.0}}, at::kFloat);
  const at::Tensor y = (at::linear(x, network->weight, network->bias)).detach();
  const at::Tensor gradient = 2 * y.t().matmul(x);  // [2, 3]
  part.settings.precision = MixedPrecision::fp16;
  run_pass(part, [&] { return network->forward(x).to(at::kFloat).square().sum(); });
  part.update(0.0);
  CHECK(part.settle());
  const OptimizerOptions defaults;
  const auto state = part.optimizer.state(0);
  REQUIRE(state);
  // fp16 keeps 11 bits: three products of it are off by less than 2e-3.
  CHECK(at::allclose(state->exp_avg, (1 - defaults.beta1) * gradient, 4e-3, 1e-4));
  CHECK(at::allclose(state->exp_avg_sq, (1 - defaults.beta2) * gradient.square(), 8e-3, 1e-5));
  CHECK(part.grad_norm.item<double>() ==
        Approx(std::sqrt((gradient.square().sum() + (2 * y).square().sum()).item<double>()))
            .epsilon(4e-3));
}

}  // namespace
}  // namespace dalle2
