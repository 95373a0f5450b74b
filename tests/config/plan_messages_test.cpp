// SPDX-License-Identifier: MIT
#include "config/minimal_config.h"

#include "support/plans.h"

namespace dalle2 {

TEST_CASE("a unet that could not be built or trained is refused") {
  rejects("/decoder/image_size=16",
          "/decoder/image_sizes: either image_size or image_sizes is required, but not both; got "
          "both");
  rejects("/decoder/image_sizes=null",
          "either image_size or image_sizes is required, but not both; got none");
  rejects("/decoder/image_sizes=[16, 32]",
          "the number of unets (1) and of different image sizes (2: 16, 32) must be the same");
  rejects("/decoder/image_sizes=[15]",
          "the image size of unet 1 must be divisible by 2 (2 dim_mults halve it 1 time), got 15");
  rejects("/decoder/unets/0/image_embed_dim=null",
          "required, but missing: the first unet is conditioned on image embeddings (set "
          "decoder.unconditional to true to train without)");
  rejects({"/decoder/unets/0/cond_on_text_encodings=true", "/data/text_embeddings_url=t"},
          "/decoder/unets/0/text_embed_dim: text_embed_dim must be given to the unet if "
          "cond_on_text_encodings is true");
  rejects("/decoder/unets/0/dim_mults=[2, 4]",
          "/decoder/unets/0/dim_mults/0: must be 1 unless memory_efficient is true, got 2");
  rejects("/decoder/unets/0/init_dim=32", "must equal dim (16) or be null, got 32");
  rejects("/decoder/unets/0/dim=17",
          "must be even and at least 4 (it is the width of the sinusoidal time embedding too), "
          "got 17");
  rejects("/decoder/unets/0/resnet_groups=5",
          "must divide every width it normalises; 5 does not divide 16 (resolution 1)");
  rejects("/decoder/unets/0/resnet_groups=[8, 5]",
          "/decoder/unets/0/resnet_groups/1: must divide every width it normalises; 5 does not "
          "divide 16 (resolution 2)");
  rejects("/decoder/unets/0/resnet_groups=[8]",
          "must be one value or 2 (one for each entry of dim_mults), got 1");
  rejects("/decoder/unets/0/num_resnet_blocks=[1,2,3]",
          "must be one value or 2 (one for each entry of dim_mults), got 3");
  rejects("/decoder/unets/0/init_cross_embed_kernel_sizes=[3, 4]",
          "/decoder/unets/0/init_cross_embed_kernel_sizes/1: must be odd and positive, got 4");
  rejects({"/decoder/unets/0/init_cross_embed=false", "/decoder/unets/0/init_conv_kernel_size=6"},
          "must be odd and positive, an even kernel would change the image's size, got 6");
  rejects("/decoder/unets/0/final_conv_kernel_size=2",
          "must be odd and positive, an even kernel would change the image's size, got 2");
  rejects({"/decoder/unets/0/cross_embed_downsample=true",
           "/decoder/unets/0/cross_embed_downsample_kernel_sizes=[2,3]"},
          "/decoder/unets/0/cross_embed_downsample_kernel_sizes/1: must be even and positive, "
          "got 3");
  rejects({"/decoder/unets/0/dim=12",
           "/decoder/unets/0/resnet_groups=4",
           "/decoder/unets/0/combine_upsample_fmaps=true"},
          "/decoder/unets/0/dim: must be divisible by 8 with combine_upsample_fmaps, got 12");
  rejects({"/decoder/unets/0/dim=4",
           "/decoder/unets/0/resnet_groups=4",
           "/decoder/unets/0/init_cross_embed_kernel_sizes=[3,5,7,9]"},
          "dim 4 is too narrow to be shared among 4 kernels");
  rejects("/decoder/sample_timesteps=1001",
          "sampling timesteps 1001 must be less than or equal to the number of training "
          "timesteps 1000 for unet 1");
  rejects("/decoder/sample_timesteps=[5, 5]", "must have one entry for each unet (1), got 2");
  rejects("/decoder/predict_v=[true, false]", "must have one entry for each unet (1), got 2");
  rejects("/decoder/learned_variance=[true, false]",
          "must have at most one entry for each unet (1), got 2");
  rejects({R"(/decoder/beta_schedule=["linear"])", "/decoder/timesteps=10"},
          "with 10 timesteps the linear schedule of unet 1 has beta 1.116 at step 5; a beta must "
          "stay below 1, or the loss is NaN: use at least 21 timesteps, or the cosine schedule");
  expect_problems({R"(/decoder/beta_schedule=["jsd"])"},
                  {"/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the "
                   "last step, where the loss of a learned variance is NaN: set learned_variance "
                   "to false for unet 1",
                   "/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the "
                   "last step, so noise prediction cannot be undone there: set predict_v or "
                   "predict_x_start to true for unet 1, or its sample_timesteps below 999"});
  rejects({R"(/decoder/beta_schedule=["jsd"])",
           "/decoder/learned_variance=false",
           "/decoder/sample_timesteps=999"},
          "/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the last "
          "step, where 999 DDIM steps would start: use 1000 steps (DDPM) or fewer than 999 for "
          "unet 1");
  rejects("/decoder/random_crop_sizes=[8]",
          "/decoder/random_crop_sizes/0: must be null: the first unet sees whole images, got 8");
  rejects("/decoder/use_blur_for_lowres_cond=[true]",
          "/decoder/use_blur_for_lowres_cond/0: must be false: the first unet has no low "
          "resolution image to be conditioned on");
  rejects({"/decoder/unconditional=true", "/decoder/clip={}", "/data/img_embeddings_url=null"},
          "/decoder/clip: clip must not be given if doing unconditional image training");
}

TEST_CASE("zero terminal SNR is refused for each unet that predicts the noise") {
  const auto line = [](int unet) {
    return "/decoder/zero_terminal_snr: needs predict_v or predict_x_start: at the last step the "
           "input is nothing but noise, so predicting the noise teaches unet " +
           std::to_string(unet) +
           " nothing about images; set one of them to true for it, or zero_terminal_snr to false";
  };
  const std::vector<std::string> snr = {"/decoder/zero_terminal_snr=true",
                                        "/decoder/learned_variance=false"};
  const auto with = [&](std::vector<std::string> assignments) {
    assignments.insert(assignments.begin(), snr.begin(), snr.end());
    return assignments;
  };
  expect_problems(snr, {line(1)});
  // Fewer steps of sampling do not help: it is the training that is at fault.
  expect_problems(with({"/decoder/sample_timesteps=100"}), {line(1)});
  expect_problems(with({R"(/decoder/beta_schedule=["jsd"])", "/decoder/sample_timesteps=100"}),
                  {line(1)});
  expect_problems(cascade(snr), {line(1), line(2)});
  expect_problems(cascade(with({"/decoder/predict_v=[true, false]"})), {line(2)});
  expect_problems(with({"/decoder/predict_v=true", "/decoder/sample_timesteps=999"}),
                  {"/decoder/zero_terminal_snr: zero_terminal_snr leaves nothing of the image at "
                   "the last step, where 999 DDIM steps would start: use 1000 steps (DDPM) or "
                   "fewer than 999 for unet 1"});
  CHECK_NOTHROW(read_with(with({"/decoder/predict_v=true"})));
  CHECK_NOTHROW(read_with(with({"/decoder/predict_x_start=true"})));
}

TEST_CASE("a cascade that could not be built or trained is refused") {
  rejects(cascade({"/decoder/use_blur_for_lowres_cond=false"}),
          "unet 2 has neither blur nor noise on its low resolution image: set "
          "use_blur_for_lowres_cond or use_noise_for_lowres_cond to true for it");
  expect_problems(cascade({"/decoder/use_blur_for_lowres_cond=[true,true,true]"}),
                  {"/decoder/use_blur_for_lowres_cond: must have one entry for each unet (2), or "
                   "for each but the first, got 3",
                   "/decoder/use_blur_for_lowres_cond/0: must be false: the first unet has no low "
                   "resolution image to be conditioned on"});
  rejects(cascade({"/decoder/blur_kernel_size=4"}), "must be odd, got 4");
  rejects(cascade({"/decoder/blur_kernel_size=[5,3]"}),
          "must be one value or a range [low, high], got [5, 3]");
  rejects(cascade({"/decoder/blur_sigma=[0.1,0.2,0.3]"}),
          "must be one value or a range [low, high], got [0.1, 0.2, 0.3]");
  rejects(cascade({"/decoder/blur_kernel_size=[3,65]"}),
          "a kernel of 65 pixels does not fit the images of 16 pixels that unet 2 blurs");
  rejects(cascade({"/decoder/random_crop_sizes=[null, 64]"}),
          "/decoder/random_crop_sizes/1: must not exceed the image size 32 of unet 2, got 64");
  rejects(cascade({"/decoder/random_crop_sizes=[null, 9]"}),
          "/decoder/random_crop_sizes/1: the crop size of unet 2 must be divisible by 2 (2 "
          "dim_mults halve it 1 time), got 9");
  rejects(cascade({"/decoder/image_sizes=[16, 16]"}),
          "the number of unets (2) and of different image sizes (1: 16, 16) must be the same");
  rejects(cascade({"/decoder/timesteps=10"}),
          "with 10 timesteps the linear schedule of unet 2 has beta 1.116 at step 5; a beta must "
          "stay below 1, or the loss is NaN: use at least 21 timesteps, or the cosine schedule");
}

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

TEST_CASE("image sizes are sorted, doubles count once") {
  DecoderConfig config = decoder_of(2);
  config.image_sizes = std::vector<int64_t>{32, 16, 32};
  const DecoderPlan plan = plan_decoder(config);
  CHECK(plan.stages[0].image_size == 16);
  CHECK(plan.stages[1].image_size == 32);
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
  config.timesteps = 2;
  for (const BetaSchedule schedule : {BetaSchedule::cosine, BetaSchedule::jsd}) {
    config.beta_schedule = std::vector<BetaSchedule>{schedule};
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

}  // namespace dalle2
