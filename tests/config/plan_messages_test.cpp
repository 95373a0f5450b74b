// SPDX-License-Identifier: MIT
#include "config/minimal_config.h"

namespace dalle2 {

TEST_CASE("a unet that could not be built or trained is refused") {
  expect_problems({"/decoder/image_size=16"},
                  {"/decoder/image_sizes: either image_size or image_sizes is required, but not "
                   "both; got both"});
  expect_problems({"/decoder/image_sizes=null"},
                  {"/decoder/image_sizes: either image_size or image_sizes is required: give the "
                   "side of the images in pixels, one for each unet"});
  expect_problems({"/decoder/image_sizes=[16, 32]"},
                  {"/decoder/image_sizes: the number of unets (1) and of different image sizes (2: "
                   "16, 32) must be the same"});
  expect_problems({"/decoder/image_sizes=[15]"},
                  {"/decoder/image_sizes: the image size of unet 1 must be divisible by 2 (2 "
                   "dim_mults halve it 1 time), got 15"});
  expect_problems({"/decoder/unets/0/image_embed_dim=null"},
                  {"/decoder/unets/0/image_embed_dim: required, but missing: the first unet is "
                   "conditioned on image embeddings (set decoder.unconditional to true to train "
                   "without)"});
  expect_problems({"/decoder/unets/0/cond_on_text_encodings=true", "/data/text_embeddings_url=t"},
                  {"/decoder/unets/0/text_embed_dim: text_embed_dim must be given to the unet if "
                   "cond_on_text_encodings is true"});
  expect_problems({"/decoder/unets/0/dim_mults=[2, 4]"},
                  {"/decoder/unets/0/dim_mults/0: must be 1 unless memory_efficient is true, got "
                   "2"});
  expect_problems({"/decoder/unets/0/init_dim=32"},
                  {"/decoder/unets/0/init_dim: must equal dim (16) or be null, got 32"});
  expect_problems({"/decoder/unets/0/dim=17"},
                  {"/decoder/unets/0/dim: must be even and at least 4 (it is the width of the "
                   "sinusoidal time embedding too), got 17"});
  expect_problems({"/decoder/unets/0/resnet_groups=5"},
                  {"/decoder/unets/0/resnet_groups: must divide every width it normalises; 5 does "
                   "not divide 16 (resolution 1)"});
  expect_problems({"/decoder/unets/0/resnet_groups=[8, 5]"},
                  {"/decoder/unets/0/resnet_groups/1: must divide every width it normalises; 5 "
                   "does not divide 16 (resolution 2)"});
  expect_problems({"/decoder/unets/0/resnet_groups=[8]"},
                  {"/decoder/unets/0/resnet_groups: must be one value or 2 (one for each entry of "
                   "dim_mults), got 1"});
  expect_problems({"/decoder/unets/0/num_resnet_blocks=[1,2,3]"},
                  {"/decoder/unets/0/num_resnet_blocks: must be one value or 2 (one for each entry "
                   "of dim_mults), got 3"});
  expect_problems({"/decoder/unets/0/init_cross_embed_kernel_sizes=[3, 4]"},
                  {"/decoder/unets/0/init_cross_embed_kernel_sizes/1: must be odd and positive, "
                   "got 4"});
  expect_problems(
      {"/decoder/unets/0/init_cross_embed=false", "/decoder/unets/0/init_conv_kernel_size=6"},
      {"/decoder/unets/0/init_conv_kernel_size: must be odd and positive, an even kernel would "
       "change the image's size, got 6"});
  expect_problems({"/decoder/unets/0/final_conv_kernel_size=2"},
                  {"/decoder/unets/0/final_conv_kernel_size: must be odd and positive, an even "
                   "kernel would change the image's size, got 2"});
  expect_problems({"/decoder/unets/0/cross_embed_downsample=true",
                   "/decoder/unets/0/cross_embed_downsample_kernel_sizes=[2,3]"},
                  {"/decoder/unets/0/cross_embed_downsample_kernel_sizes/1: must be even and "
                   "positive, got 3"});
  expect_problems({"/decoder/unets/0/dim=12",
                   "/decoder/unets/0/resnet_groups=4",
                   "/decoder/unets/0/combine_upsample_fmaps=true"},
                  {"/decoder/unets/0/dim: must be divisible by 8 with combine_upsample_fmaps, got "
                   "12"});
  expect_problems({"/decoder/unets/0/dim=4",
                   "/decoder/unets/0/resnet_groups=4",
                   "/decoder/unets/0/init_cross_embed_kernel_sizes=[3,5,7,9]"},
                  {"/decoder/unets/0/init_cross_embed_kernel_sizes: dim 4 is too narrow to be "
                   "shared among 4 kernels"});
  expect_problems({"/decoder/sample_timesteps=1001"},
                  {"/decoder/sample_timesteps: sampling timesteps 1001 must be less than or equal "
                   "to the number of training timesteps 1000 for unet 1"});
  expect_problems({"/decoder/sample_timesteps=[5, 5]"},
                  {"/decoder/sample_timesteps: must have one entry for each unet (1), got 2"});
  expect_problems({"/decoder/predict_v=[true, false]"},
                  {"/decoder/predict_v: must have one entry for each unet (1), got 2"});
  expect_problems({"/decoder/learned_variance=[true, false]"},
                  {"/decoder/learned_variance: must have at most one entry for each unet (1), got "
                   "2"});
  expect_problems({R"(/decoder/beta_schedule=["linear"])", "/decoder/timesteps=10"},
                  {"/decoder/timesteps: with 10 timesteps the linear schedule of unet 1 has beta "
                   "1.116 at step 5; a beta must stay below 1, or the loss is NaN: use at least 21 "
                   "timesteps, or the cosine schedule"});
  expect_problems({R"(/decoder/beta_schedule=["jsd"])"},
                  {"/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the "
                   "last step, where the loss of a learned variance is NaN: set learned_variance "
                   "to false for unet 1",
                   "/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the "
                   "last step, so noise prediction cannot be undone there: set predict_v or "
                   "predict_x_start to true for unet 1, or its sample_timesteps below 999"});
  expect_problems({R"(/decoder/beta_schedule=["jsd"])",
                   "/decoder/learned_variance=false",
                   "/decoder/sample_timesteps=999"},
                  {"/decoder/beta_schedule: the jsd schedule leaves nothing of the image at the "
                   "last step, where 999 DDIM steps would start: use 1000 steps (DDPM) or fewer "
                   "than 999 for unet 1"});
  expect_problems({"/decoder/random_crop_sizes=[8]"},
                  {"/decoder/random_crop_sizes/0: must be null: the first unet sees whole images, "
                   "got 8"});
  expect_problems({"/decoder/use_blur_for_lowres_cond=[true]"},
                  {"/decoder/use_blur_for_lowres_cond/0: must be false: the first unet has no low "
                   "resolution image to be conditioned on"});
  expect_problems(
      {"/decoder/unconditional=true", "/decoder/clip={}", "/data/img_embeddings_url=null"},
      {"/decoder/clip: clip must not be given if doing unconditional image training"});
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
  expect_problems(cascade({"/decoder/use_blur_for_lowres_cond=false"}),
                  {"/decoder/use_blur_for_lowres_cond: unet 2 has neither blur nor noise on its "
                   "low resolution image: set use_blur_for_lowres_cond or "
                   "use_noise_for_lowres_cond to true for it"});
  expect_problems(cascade({"/decoder/use_blur_for_lowres_cond=[true,true,true]"}),
                  {"/decoder/use_blur_for_lowres_cond: must have one entry for each unet (2), or "
                   "for each but the first, got 3",
                   "/decoder/use_blur_for_lowres_cond/0: must be false: the first unet has no low "
                   "resolution image to be conditioned on"});
  expect_problems(cascade({"/decoder/blur_kernel_size=4"}),
                  {"/decoder/blur_kernel_size: must be odd, got 4"});
  expect_problems(cascade({"/decoder/blur_kernel_size=[5,3]"}),
                  {"/decoder/blur_kernel_size: must be one value or a range [low, high], got [5, "
                   "3]"});
  expect_problems(cascade({"/decoder/blur_sigma=[0.1,0.2,0.3]"}),
                  {"/decoder/blur_sigma: must be one value or a range [low, high], got [0.1, 0.2, "
                   "0.3]"});
  expect_problems(cascade({"/decoder/blur_kernel_size=[3,65]"}),
                  {"/decoder/blur_kernel_size: a kernel of 65 pixels does not fit the images of 16 "
                   "pixels that unet 2 blurs"});
  expect_problems(cascade({"/decoder/random_crop_sizes=[null, 64]"}),
                  {"/decoder/random_crop_sizes/1: must not exceed the image size 32 of unet 2, got "
                   "64"});
  expect_problems(cascade({"/decoder/random_crop_sizes=[null, 9]"}),
                  {"/decoder/random_crop_sizes/1: the crop size of unet 2 must be divisible by 2 "
                   "(2 dim_mults halve it 1 time), got 9"});
  expect_problems(cascade({"/decoder/image_sizes=[16, 16]"}),
                  {"/decoder/image_sizes: the number of unets (2) and of different image sizes (1: "
                   "16, 16) must be the same"});
  expect_problems(cascade({"/decoder/timesteps=10"}),
                  {"/decoder/timesteps: with 10 timesteps the linear schedule of unet 2 has beta "
                   "1.116 at step 5; a beta must stay below 1, or the loss is NaN: use at least 21 "
                   "timesteps, or the cosine schedule"});
}

}  // namespace dalle2
