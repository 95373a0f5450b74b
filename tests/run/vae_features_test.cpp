// SPDX-License-Identifier: MIT
#include "run/vae/vae_run.h"

#include <torch/script.h>

#include <catch2/catch.hpp>

#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

TEST_CASE("a perceptual network whose features are not finite is an error before a VAE trains") {
  const TempDir folder;
  TrainVaeConfig config;
  config.vae.use_vgg_and_gan = true;
  config.data.image_size = 8;
  config.train.vgg_path = folder.path() + "/vgg.pt";
  const auto save = [&](const char* body) {
    torch::jit::Module module("Features");
    module.define(std::string("def forward(self, images):\n  return ") + body + "\n");
    module.save(*config.train.vgg_path);
  };
  save("images.flatten(1) * 2");
  CHECK(perceptual_features(config, at::kCPU) != nullptr);
  save("images.flatten(1).sub(9).log()");
  CHECK_THROWS_WITH(perceptual_features(config, at::kCPU),
                    Catch::Contains("expected features [2, F], got features that are not finite "
                                    "(NaN or infinite)\n  scripts/export_vgg.py"));
}

}  // namespace
}  // namespace dalle2::test
