// SPDX-License-Identifier: MIT
#include <catch2/catch.hpp>

#include "base/error.h"
#include "trainer_fixture.h"
#include "trainer_probe.h"

namespace dalle2 {
namespace {

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

TEST_CASE("a decoder in eval mode stays in eval mode") {
  const auto trainer = test::cascade().trainer();
  trainer->decoder()->eval();
  trainer->sample(sample_options(1));
  CHECK_FALSE(trainer->decoder()->is_training());
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

}  // namespace
}  // namespace dalle2
