// SPDX-License-Identifier: MIT
#include "run/vae/vae_run.h"

#include <torch/script.h>
#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <cmath>

#include "support/temp_dir.h"

namespace dalle2 {
namespace {

using Catch::Contains;

constexpr int64_t kCodes = 4, kLength = 3;

VaeLosses losses_of(double value, std::vector<int64_t> indices) {
  const at::Tensor loss = at::scalar_tensor(value, at::kFloat);
  return {.total = loss,
          .reconstruction = loss,
          .perceptual = {},
          .generator = {},
          .gan_weight = {},
          .quantizer = loss * 2,
          .indices = at::tensor(indices, at::kLong).view({1, 1, -1})};
}

void update(VaeDiagnostics& diagnostics, double value, std::vector<int64_t> indices) {
  ProcessGroup alone;
  diagnostics.add(losses_of(value, std::move(indices)), kCodes);
  diagnostics.end_update(alone, at::kCPU, kCodes, kLength);
}

std::string record_of(VaeDiagnostics diagnostics) {
  ProcessGroup alone;
  std::string text;
  for (const auto& [name, value] : diagnostics.take(alone))
    text += fmt::format("{} {:.4g}; ", name, std::get<double>(value));
  return text;
}

/// What a checkpoint has of a position.
Value saved(VaePosition& position) {
  Dict own, root;
  for (auto& [key, value] : position_entries(position, own)) root.set(key, value);
  root.set(kOwnState, own);
  return root;
}

TEST_CASE("a VAE's log has means of the last updates and the use of codes since the last record") {
  VaeDiagnostics diagnostics;
  CHECK(record_of(diagnostics).empty());
  for (const double value : {9.0, 1.0, 2.0, 3.0}) update(diagnostics, value, {0, 0, 1, 1});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 2; quantizer_loss 4; codebook_usage 0.5; codebook_perplexity 2; ");
  ProcessGroup alone;
  diagnostics.take(alone);
  update(diagnostics, 4, {3, 3});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 3; quantizer_loss 6; codebook_usage 0.25; codebook_perplexity 1; ");
}

TEST_CASE("an update that is not finite has no part in what a VAE's log says") {
  VaeDiagnostics diagnostics;
  update(diagnostics, 1, {0, 1});
  update(diagnostics, NAN, {2, 3});
  update(diagnostics, 3, {0, 1});
  CHECK(record_of(diagnostics) ==
        "reconstruction_loss 2; quantizer_loss 4; codebook_usage 0.5; codebook_perplexity 2; ");
}

TEST_CASE("a VAE's position takes what its log says through a checkpoint, and back") {
  ProcessGroup alone;
  VaePosition position;
  position.step = 7;
  position.best_validation_loss = 0.5;
  update(position.diagnostics, 1, {0, 1});
  position.gather(alone);
  const Value checkpoint = saved(position);
  VaePosition other;
  update(other.diagnostics, 100, {3, 3});
  read_position(other, Cursor(checkpoint));
  CHECK(other.best_validation_loss == 0.5);
  for (VaePosition* each : {&position, &other}) update(each->diagnostics, 2, {1, 1});
  CHECK(record_of(position.diagnostics) == record_of(other.diagnostics));
  CHECK(record_of(other.diagnostics).starts_with("reconstruction_loss 1.5; "));
  other.reset();
  CHECK(record_of(other.diagnostics).empty());
}

TEST_CASE("entries of a VAE's log of another form are refused") {
  for (const auto& [key, tensor] : {std::pair{"recent_diagnostics", at::zeros({3, 4})},
                                    std::pair{"recent_diagnostics", at::zeros({5}, at::kLong)},
                                    std::pair{"code_uses", at::zeros({4})},
                                    std::pair{"code_uses", at::zeros({2, 2}, at::kLong)}}) {
    VaePosition position;
    Value checkpoint = saved(position);
    Dict own = checkpoint.as_dict().find(kOwnState)->as_dict();
    own.set(key, tensor);
    checkpoint.as_dict().set(kOwnState, own);
    CHECK_THROWS_WITH(read_position(position, Cursor(checkpoint)),
                      Contains(key) && Contains("expected ["));
  }
}

}  // namespace
}  // namespace dalle2

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
