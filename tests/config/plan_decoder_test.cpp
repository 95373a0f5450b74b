// SPDX-License-Identifier: MIT
#include "config/minimal_config.h"
#include "support/plans.h"

namespace dalle2 {
namespace {

DecoderConfig decoder_of(size_t unets) {
  DecoderConfig config;
  config.image_sizes = std::vector<int64_t>();
  for (size_t i = 0; i < unets; ++i) {
    UnetConfig unet;
    unet.dim = 16;
    unet.dim_mults = {1, 2};
    unet.image_embed_dim = 8;
    config.unets.push_back(unet);
    config.image_sizes->push_back(int64_t{16} << i);
  }
  return config;
}

}  // namespace

TEST_CASE("a single unet is planned with the reference's defaults") {
  const DecoderPlan plan = plan_decoder(decoder_of(1));
  REQUIRE(plan.stages.size() == 1);
  const UnetPlan& stage = plan.stages[0];
  CHECK(stage.image_size == 16);
  CHECK(stage.timesteps == 1000);
  CHECK(stage.beta_schedule == BetaSchedule::cosine);
  CHECK(stage.objective == Objective::eps);
  CHECK(stage.learned_variance);
  CHECK_FALSE(stage.sample_timesteps);
  CHECK_FALSE(stage.lowres_blur);
  CHECK_FALSE(stage.lowres_noise);
  CHECK(stage.unet.cond_on_image_embeds);
  CHECK(stage.unet.cond_on_text_encodings == false);
  CHECK_FALSE(stage.unet.lowres_cond);
  CHECK(stage.unet.channels == 3);
  CHECK(stage.unet.channels_out == 6);
  CHECK_FALSE(plan.text_conditioned());
}

TEST_CASE("only the last of several unets is linear by default, only the first learns variance") {
  const DecoderPlan plan = plan_decoder(decoder_of(3));
  CHECK(plan.stages[0].beta_schedule == BetaSchedule::cosine);
  CHECK(plan.stages[1].beta_schedule == BetaSchedule::cosine);
  CHECK(plan.stages[2].beta_schedule == BetaSchedule::linear);
  CHECK(plan.stages[0].unet.channels_out == 6);
  CHECK(plan.stages[1].unet.channels_out == 3);
  CHECK_FALSE(plan.stages[2].learned_variance);
}

TEST_CASE("upper unets get the low resolution image and never the image embedding") {
  DecoderConfig config = decoder_of(2);
  config.unets[1].cond_on_image_embeds = true;
  config.unets[1].image_embed_dim.reset();
  config.unets[0].lowres_cond = true;
  config.use_noise_for_lowres_cond = true;
  config.use_blur_for_lowres_cond = std::vector<bool>{false, false};
  const DecoderPlan plan = plan_decoder(config);
  CHECK_FALSE(plan.stages[0].unet.lowres_cond);
  CHECK_FALSE(plan.stages[0].unet.lowres_noise_cond);
  CHECK(plan.stages[1].unet.lowres_cond);
  CHECK(plan.stages[1].unet.lowres_noise_cond);
  CHECK_FALSE(plan.stages[1].unet.cond_on_image_embeds);
  CHECK(plan.stages[1].lowres_noise);
  CHECK_FALSE(plan.stages[1].lowres_blur);
}

TEST_CASE("an array for the upper unets alone is taken for them") {
  DecoderConfig config = decoder_of(3);
  config.use_noise_for_lowres_cond = std::vector<bool>{true, false};
  config.use_blur_for_lowres_cond = std::vector<bool>{false, false, true};
  const DecoderPlan plan = plan_decoder(config);
  CHECK(plan.stages[1].lowres_noise);
  CHECK_FALSE(plan.stages[2].lowres_noise);
  CHECK(plan.stages[2].lowres_blur);
}

TEST_CASE("image sizes are sorted, doubles count once") {
  DecoderConfig config = decoder_of(2);
  config.image_sizes = std::vector<int64_t>{32, 16, 32};
  const DecoderPlan plan = plan_decoder(config);
  CHECK(plan.stages[0].image_size == 16);
  CHECK(plan.stages[1].image_size == 32);
}

TEST_CASE("image_size alone gives the size of a single unet") {
  DecoderConfig config = decoder_of(1);
  config.image_sizes.reset();
  config.image_size = 64;
  CHECK(plan_decoder(config).stages[0].image_size == 64);
}

TEST_CASE("as many sampling steps as timesteps is DDPM, fewer is DDIM") {
  DecoderConfig config = decoder_of(2);
  config.sample_timesteps = std::vector<std::optional<int64_t>>{1000, 27};
  const DecoderPlan plan = plan_decoder(config);
  CHECK_FALSE(plan.stages[0].sample_timesteps);
  CHECK(plan.stages[1].sample_timesteps == 27);
}

TEST_CASE("v wins over x_start, and each unet has its own objective and p2 weight") {
  DecoderConfig config = decoder_of(3);
  config.predict_v = std::vector<bool>{true, false, false};
  config.predict_x_start = std::vector<bool>{true, true, false};
  config.p2_loss_weight_gamma = std::vector<double>{0.5, 1, 0};
  const DecoderPlan plan = plan_decoder(config);
  CHECK(plan.stages[0].objective == Objective::v);
  CHECK(plan.stages[1].objective == Objective::x_start);
  CHECK(plan.stages[2].objective == Objective::eps);
  CHECK(plan.stages[1].p2_loss_weight_gamma == 1);
  config.predict_x_start_for_latent_diffusion = true;
  CHECK(plan_decoder(config).stages[1].objective == Objective::eps);
}

TEST_CASE("an unconditional decoder needs no embedding and sees no text") {
  DecoderConfig config = decoder_of(1);
  config.unconditional = true;
  config.unets[0].image_embed_dim.reset();
  config.unets[0].cond_on_text_encodings = true;
  const DecoderPlan plan = plan_decoder(config);
  CHECK_FALSE(plan.stages[0].unet.cond_on_image_embeds);
  CHECK_FALSE(plan.text_conditioned());
}

TEST_CASE("memory_efficient frees the first multiple and halves the image once more") {
  DecoderConfig config = decoder_of(1);
  config.unets[0].memory_efficient = true;
  config.unets[0].dim_mults = {2, 4};
  CHECK_NOTHROW(plan_decoder(config));
  config.image_sizes = std::vector<int64_t>{18};
  CHECK_THROWS_WITH(plan_decoder(config),
                    "decoder: 1 problem\n  /decoder/image_sizes: the image size of unet 1 must be "
                    "divisible by 4 (2 dim_mults with memory_efficient halve it 2 times), got 18");
}

TEST_CASE("short chains are refused for the schedules that break on them, and only for those") {
  DecoderConfig config = decoder_of(1);
  config.learned_variance = false;
  config.predict_v = true;
  for (const BetaSchedule schedule :
       {BetaSchedule::linear, BetaSchedule::quadratic, BetaSchedule::sigmoid}) {
    config.beta_schedule = std::vector<BetaSchedule>{schedule};
    config.timesteps = 10;
    CHECK_THROWS_AS(plan_decoder(config), ConfigError);
    config.timesteps = 21;
    CHECK_NOTHROW(plan_decoder(config));
  }
  for (const BetaSchedule schedule : {BetaSchedule::cosine, BetaSchedule::jsd}) {
    config.beta_schedule = std::vector<BetaSchedule>{schedule};
    config.timesteps = 2;
    CHECK_NOTHROW(plan_decoder(config));
  }
}

TEST_CASE("jsd is allowed where its last step does no harm") {
  DecoderConfig config = decoder_of(1);
  config.beta_schedule = std::vector<BetaSchedule>{BetaSchedule::jsd};
  config.learned_variance = false;
  CHECK_THROWS_AS(plan_decoder(config), ConfigError);  // noise prediction over the whole chain
  config.sample_timesteps = std::optional<int64_t>(50);
  CHECK_NOTHROW(plan_decoder(config));
  config.sample_timesteps = std::nullopt;
  config.predict_x_start = true;
  CHECK_NOTHROW(plan_decoder(config));
  config.learned_variance = true;
  CHECK_THROWS_AS(plan_decoder(config), ConfigError);
}

TEST_CASE("random crops of upper unets and ranges of the blur are taken") {
  DecoderConfig config = decoder_of(2);
  config.random_crop_sizes = std::vector<std::optional<int64_t>>{std::nullopt, 8};
  config.blur_sigma = std::vector<double>{0.4, 0.6};
  config.blur_kernel_size = std::vector<int64_t>{3, 7};
  const DecoderPlan plan = plan_decoder(config);
  CHECK_FALSE(plan.stages[0].random_crop_size);
  CHECK(plan.stages[1].random_crop_size == 8);
}

}  // namespace dalle2
