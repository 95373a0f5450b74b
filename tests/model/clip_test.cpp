// SPDX-License-Identifier: MIT
#include "model/clip/clip.h"

#include <torch/torch.h>

#include "base/error.h"
#include "model/clip/clip_encoder.h"
#include "model/clip_support.h"

namespace dalle2::test {
namespace {

using Catch::Contains;

ClipNetworkConfig small_config(bool resnet = false) {
  ClipNetworkConfig config;
  config.embed_dim = 6;
  config.vision_cfg = {.layers = int64_t{2},
                       .width = 8,
                       .head_width = 4,
                       .mlp_ratio = 2,
                       .patch_size = 4,
                       .image_size = 32};
  if (resnet) config.vision_cfg.layers = std::vector<int64_t>{1, 1, 1, 1};
  config.text_cfg = {
      .context_length = 8, .vocab_size = 520, .width = 8, .heads = 2, .layers = 2, .mlp_ratio = 2};
  return config;
}

std::shared_ptr<ClipImpl> small_clip(bool resnet = false) {
  torch::manual_seed(3);
  return std::make_shared<ClipImpl>(small_config(resnet));
}

at::Tensor some_tokens() {
  return at::tensor({518, 7, 9, 519, 0, 0, 0, 0, 518, 5, 519, 0, 0, 0, 0, 0}, at::kLong)
      .view({2, 8});
}

TEST_CASE("a frozen CLIP stays in eval mode, has no gradients and the reference's names") {
  torch::nn::Module model;
  const auto clip = small_clip();
  clip->train();
  model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(clip));
  CHECK_FALSE(clip->is_training());
  model.train();
  CHECK(model.is_training());
  for (const auto& module : clip->modules()) CHECK_FALSE(module->is_training());
  REQUIRE(model.parameters().size() > 20);
  for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
  CHECK(model.named_parameters().contains("clip.clip.visual.conv1.weight"));
  CHECK(model.named_parameters().contains("clip.clip.logit_scale"));
}

TEST_CASE("tokens after the end of a text change neither its feature nor its encodings") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens();
  at::Tensor others = tokens.clone();
  others.select(0, 1).narrow(0, 3, 5).fill_(17);
  expect_close(clip->text_features(others), clip->text_features(tokens), 1e-6, "features");
  const ClipTexts seen = clip->embed_text(others), expected = clip->embed_text(tokens);
  CHECK(at::equal(seen.mask, expected.mask));
  CHECK(seen.mask.sum(-1).equal(at::tensor({4, 3}, at::kLong)));
  expect_close(seen.encodings, expected.encodings, 1e-6, "encodings");
}

TEST_CASE("texts are cut to the longest of them, which changes no feature") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = some_tokens();
  CHECK(trimmed_tokens(tokens).equal(tokens.narrow(1, 0, 4)));
  expect_close(clip->text_features(tokens.narrow(1, 0, 4)), clip->text_features(tokens), 0, "cut");
  CHECK(trimmed_tokens(at::empty({0, 8}, at::kLong)).size(0) == 0);
}

TEST_CASE("token 0 inside a text has no encoding, and texts longer than the context are cut") {
  const auto clip = small_clip();
  const torch::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor({518, 0, 9, 4, 3, 2, 1, 8, 519, 6}, at::kLong).unsqueeze(0);
  const ClipTexts texts = clip->embed_text(tokens);
  CHECK(texts.encodings.sizes() == at::IntArrayRef({1, 8, 8}));
  CHECK_FALSE(texts.mask[0][1].item<bool>());
  CHECK(texts.encodings[0][1].abs().max().item<double>() == 0);
  CHECK(texts.mask.sum().item<int64_t>() == 7);
}

TEST_CASE("pictures smaller than the CLIP's and texts longer than its context are refused") {
  const auto clip = small_clip();
  CHECK_THROWS_AS(clip->embed_image(at::zeros({1, 3, 31, 31})), DataError);
  CHECK_THROWS_WITH(clip->embed_image(at::zeros({1, 3, 31, 31})),
                    Contains("[1, 3, 31, 31]") && Contains("H at least 32"));
  CHECK_THROWS_WITH(clip->embed_image(at::zeros({1, 3, 40, 32})), Contains("[1, 3, 40, 32]"));
  at::Tensor tokens = at::zeros({1, 9}, at::kLong);
  CHECK_NOTHROW(clip->text_features(tokens));  // ends in the context, as far as anybody looks
  tokens[0][8] = 519;
  CHECK_THROWS_WITH(clip->text_features(tokens), Contains("[1, 9]") && Contains("L up to 8"));
}

TEST_CASE(
    "the loss of pairs that are alike is the logarithm of their number, and follows the scale") {
  const at::Tensor same = pair_features(at::ones({4, 3}), 2 * at::ones({4, 3}));
  CHECK(same.sizes() == at::IntArrayRef({4, 2, 3}));
  const at::Tensor scale = at::full({}, std::log(100.0));
  CHECK(contrastive_loss(same, scale).item<double>() == Approx(std::log(4.0)).epsilon(1e-6));
  const at::Tensor own = pair_features(at::eye(4), at::eye(4));
  // 100 for the own one, 0 for the three others
  CHECK(contrastive_loss(own, scale).item<double>() == Approx(0).margin(1e-6));
  CHECK(contrastive_loss(own, at::zeros({})).item<double>() ==
        Approx(std::log(std::exp(1.0) + 3) - 1).epsilon(1e-6));
}

TEST_CASE("weights begin with open_clip's deviations") {
  torch::manual_seed(0);
  ClipNetworkConfig config = small_config();
  config.text_cfg.width = 64;
  config.text_cfg.layers = 2;
  const auto clip = std::make_shared<ClipImpl>(config);
  const auto parameters = clip->named_parameters();
  const auto deviation = [&](const char* name) { return parameters[name].std().item<double>(); };
  CHECK(deviation("token_embedding.weight") == Approx(0.02).epsilon(0.05));
  CHECK(deviation("positional_embedding") == Approx(0.01).epsilon(0.15));
  CHECK(deviation("transformer.resblocks.1.attn.in_proj_weight") == Approx(0.125).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.attn.out_proj.weight") == Approx(0.0625).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.mlp.c_fc.weight") ==
        Approx(1 / std::sqrt(128)).epsilon(0.05));
  CHECK(deviation("transformer.resblocks.1.mlp.c_proj.weight") == Approx(0.0625).epsilon(0.05));
  CHECK(clip->logit_scale.item<double>() == Approx(std::log(1 / 0.07)));
}

}  // namespace
}  // namespace dalle2::test
