// SPDX-License-Identifier: MIT
// The network of the perceptual loss on a device that is not the CPU.
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/script.h>

#include <catch2/catch.hpp>

#include "model/random.h"
#include "run/vae/vae_run.h"
#include "support/fake_device.h"
#include "support/fixture.h"
#include "support/temp_dir.h"

namespace dalle2::test {
namespace {

TrainVaeConfig config_with(const std::string& vgg_path) {
  TrainVaeConfig config;
  config.vae.use_vgg_and_gan = true;
  config.data.image_size = 8;
  config.train.vgg_path = vgg_path;
  return config;
}

/// Deterministic algorithms, for as long as it lives.
class Deterministic {
 public:
  Deterministic() { use_deterministic_algorithms(); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;
};

TEST_CASE("a network whose gradients have no deterministic form is an error before training") {
  const TempDir folder;
  const TrainVaeConfig config = config_with(folder.path() + "/vgg.pt");
  torch::jit::Module module("Features");
  module.define(
      "def forward(self, images):\n"
      "  return torch.adaptive_avg_pool2d(images, [3, 3]).flatten(1)\n");
  module.save(*config.train.vgg_path);
  CHECK(perceptual_features(config, fake_device()) != nullptr);
  const Deterministic deterministic;
  CHECK(perceptual_features(config, at::kCPU) != nullptr);
  CHECK_THROWS_WITH(
      perceptual_features(config, fake_device()),
      Catch::StartsWith("/train/deterministic: the gradients of the network in " +
                        *config.train.vgg_path +
                        " (/train/vgg_path) have no deterministic form on this device: "
                        "\"aten::_adaptive_avg_pool2d_backward does not have a deterministic") &&
          Catch::Contains("scripts/export_vgg.py"));
}

TEST_CASE(
    "the network's first gradients have the bits of later ones, as a resumed run needs them") {
  torch::jit::setTensorExprFuserEnabled(true);
  const ImageFeatures features = perceptual_features(
      config_with(fixture_folder("feature_networks") + "/pictures.pt"), fake_device());
  CHECK_FALSE(torch::jit::tensorExprFuserEnabled());
  const at::Tensor pictures =
      at::rand({2, 3, 8, 8}, make_generator({1, "pictures"}, at::kCPU)).to(fake_device());
  const auto gradient = [&] {
    const at::Tensor leaf = pictures.clone().requires_grad_();
    features(leaf).square().mean().backward();
    return leaf.grad().cpu();
  };
  const at::Tensor first = gradient();
  for (int pass = 0; pass < 5; ++pass) CHECK(at::equal(gradient(), first));
}

}  // namespace
}  // namespace dalle2::test
