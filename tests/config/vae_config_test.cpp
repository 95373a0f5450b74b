// SPDX-License-Identifier: MIT
#include "config/vae/vae_run_config.h"

#include <catch2/catch.hpp>

#include "config/minimal_vae.h"

namespace dalle2 {
namespace {

void expect_vae_problem(const std::vector<std::string>& assignments, const std::string& line) {
  INFO(line);
  CHECK(message_of([&] { read_vae(assignments); }) == "vae.json: 1 problem\n  " + line);
}

TEST_CASE("the smallest VAE config has the references' defaults") {
  const TrainVaeConfig config = read_vae({}).config;
  CHECK(config.vae.is_muse());
  CHECK(config.vae.is_lookup_free());
  CHECK(config.vae.codes() == 65536);
  CHECK(config.vae.layers == 4);
  CHECK(config.vae.reduction() == 16);
  CHECK(config.vae.lfq_kwargs.diversity_gamma == 4.0);
  CHECK(config.vae.use_hinge_loss);
  CHECK_FALSE(config.vae.l2_recon_loss);
  CHECK(config.data.valid_frac == 0.05);
  CHECK(config.data.random_split_seed == 42);
  CHECK(config.train.lr == 3e-4);
  CHECK(config.train.wd == 0.0);
  CHECK(config.train.betas == std::vector<double>{0.9, 0.999});
  CHECK(config.train.grad_accum_every == 1);
  CHECK_FALSE(config.train.max_grad_norm.has_value());
  CHECK_FALSE(config.train.discr_max_grad_norm.has_value());
  CHECK(config.train.save_results_every == 100);
  CHECK(config.train.save_model_every == 1000);
  CHECK(config.train.apply_grad_penalty_every == 4);
  CHECK(config.train.use_ema);
  CHECK(config.train.ema_beta == 0.995);
  CHECK(config.train.ema_update_after_step == 0);
  CHECK(config.train.ema_update_every == 1);
  const TrainVaeConfig theirs = read_vae({"/vae/kind=dalle2", "/vae/image_size=64"}).config;
  CHECK(theirs.vae.codes() == 512);
  CHECK_FALSE(theirs.vae.is_lookup_free());
  CHECK(read_vae({}).warnings.empty());
}

TEST_CASE("whether EXIF counts is settled when a config is read, and part of it") {
  CHECK(read_vae({}).config.data.apply_exif == false);
  CHECK(read_vae({"/data/apply_exif=true"}).config.data.apply_exif == true);
  CHECK(read_vae({}).full_json.find("\"apply_exif\": false") != std::string::npos);
}

TEST_CASE("what a VAE config says against itself is told") {
  expect_vae_problem({"/vae/channels=2"}, "/vae/channels: must be 1, 3 or 4, got 2");
  expect_vae_problem(
      {"/data/image_size=72"},
      "/data/image_size: must be divisible by 16 (2 to the power of vae.layers), got 72");
  expect_vae_problem({"/vae/image_size=32"},
                     "/data/image_size: must be vae.image_size (32), got 64");
  expect_vae_problem(
      {"/vae/discr_layers=5"},
      "/data/image_size: the discriminator of vae.discr_layers = 5 needs pictures of "
      "128 pixels or more, got 64");
  expect_vae_problem(
      {"/vae/codebook_size=1000"},
      "/vae/codebook_size: must be a power of two for lookup-free quantisation, got 1000");
  expect_vae_problem(
      {"/vae/vq_codebook_size=512"},
      "/vae/vq_codebook_size: is the dalle2 kind's; of the muse kind give codebook_size");
  expect_vae_problem({"/vae/dim=24"},
                     "/vae/dim: must be divisible by encdec_resnet_groups (16), got 24");
  expect_vae_problem(
      {"/vae/dim=24", "/vae/encdec_resnet_groups=8"},
      "/vae/dim: must be divisible by 16, the groups of the discriminator's norms, got 24");
  expect_vae_problem({"/vae/encdec_layer_mults=[1,2]"},
                     "/vae/encdec_layer_mults: must have one entry for each of the 4 layers");
  expect_vae_problem({"/vae/encdec_num_resnet_blocks=[1,2]"},
                     "/vae/encdec_num_resnet_blocks: must have one entry for each of the 4 layers");
  expect_vae_problem({"/vae/encdec_first_conv_kernel_size=4"},
                     "/vae/encdec_first_conv_kernel_size: must be odd");
  expect_vae_problem({"/vae/kind=dalle2"}, "/vae/image_size: is needed by the dalle2 kind");
  expect_vae_problem(
      {"/vae/kind=dalle2", "/vae/image_size=64", "/vae/lookup_free_quantization=false"},
      "/vae/lookup_free_quantization: is the muse kind's: the dalle2 kind always has a codebook");
  expect_vae_problem({"/train/lora/rank=2"},
                     "/train/lora: has no place here: a VAE is trained as a whole");
  CHECK_THAT(message_of([] { read_vae({"/train/vgg_path=null"}); }),
             Catch::Contains("/train/vgg_path: must be given: the perceptual loss"));
  CHECK_NOTHROW(read_vae({"/train/vgg_path=null", "/vae/use_vgg_and_gan=false"}));
}

}  // namespace
}  // namespace dalle2
