// SPDX-License-Identifier: MIT
// CLIPs of random configurations against open_clip and clip-anytorch.
#include <torch/torch.h>
#include <algorithm>

#include "checkpoint/module_state.h"
#include "kernels/cpu_algorithms.h"
#include "model/clip/clip.h"
#include "model/clip/clip_transformer.h"
#include "model/clip_support.h"
#include "model/layers.h"
#include "support/rounding_noise.h"

namespace dalle2::test {
namespace {

// Sums in another order: a few roundings of float32 a layer.
constexpr double kFeatureTolerance = 2e-5;
// Gradients pass every layer twice. Those that are small differences, as before batch norms in training
// mode, or zero but for roundings, of a key's bias, have their own noise besides.
constexpr double kClipGradientTolerance = 2e-4;
// bfloat16 has 8 bits of mantissa, float16 has 11; both sides round at the same places but for sums.
constexpr double kBfloat16Tolerance = 4e-2, kHalfTolerance = 8e-3;
// Features of small norm, whose terms cancel, move by more when the reference's weights move by one rounding.
constexpr double kHalfNoiseSteps = 4;

struct ClipCase {
  explicit ClipCase(const std::string& path)
      : fixture(load_fixture(path)),
        config(clip_config_of(fixture.json.at("config"))),
        clip(filled_clip(config)) {
    const int64_t side = config.vision_cfg.image_size;
    images = pictures(side, 0.37);
    larger = pictures(side + fixture.json.at("extra_pixels").get<int64_t>(), 0.61);
    tokens = fixture.tensor("tokens");
  }
  at::Tensor pictures(int64_t side, double frequency) const {
    return wave({fixture.tensor("tokens").size(0), 3, side, side},
                frequency,
                fixture.json.at("phase").get<double>(),
                0.5,
                0.5);
  }

  Fixture fixture;
  ClipNetworkConfig config;
  std::shared_ptr<ClipImpl> clip;
  at::Tensor images, larger, tokens;
};

template <class Check>
void for_each_case(const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder("clip"), 5)) {
    ClipCase one(path);
    INFO(path << " " << one.fixture.json.at("config").dump());
    check(one);
  }
}

/// One pass in training mode, which moves the statistics of batch norms, as the maker makes it.
void train_once(ClipCase& one) {
  one.clip->train();
  const at::Tensor loss = contrastive_loss(
      pair_features(one.clip->image_features(one.images), one.clip->text_features(one.tokens)),
      one.clip->logit_scale);
  expect_within_noise(loss, one.fixture, "loss", kFeatureTolerance);
  loss.backward();
}

TEST_CASE("names, the contrastive loss and all gradients are open_clip's") {
  // With other roundings, the gate of a ReLU near zero may open, and gradients jump. tests/kernels compares our
  // own convolutions with these.
  const PlainAlgorithms plain;
  for_each_case([](ClipCase& one) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*one.clip)) names.push_back(name);
    std::sort(names.begin(), names.end());
    CHECK(names == one.fixture.json.at("names").get<std::vector<std::string>>());
    train_once(one);
    for (const auto& item : one.clip->named_parameters()) {
      INFO(item.key());
      REQUIRE(item.value().grad().defined());
      expect_within_noise(
          compact(item.value().grad()), one.fixture, "grad." + item.key(), kClipGradientTolerance);
    }
  });
}

TEST_CASE("features and embeddings are those of the reference's adapters") {
  for_each_case([](ClipCase& one) {
    train_once(one);
    one.clip->eval();
    const torch::NoGradGuard no_grad;
    const auto close = [&](const at::Tensor& actual, const char* name) {
      expect_within_noise(actual, one.fixture, name, kFeatureTolerance);
    };
    close(one.clip->image_features(one.images), "image_features");
    close(one.clip->text_features(one.tokens), "text_features");
    close(one.clip->embed_image(one.larger), "image_embed");
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    close(texts.embed, "text_embed");
    close(texts.encodings, "text_encodings");
    CHECK(at::equal(texts.mask, (one.fixture.tensor("text_encodings") != 0).any(-1)));
  });
}

/// Holds the weights of products and convolutions in `dtype` and calculates in it, norms excepted, as the
/// references do on a GPU.
void hold_weights_as(ClipImpl& clip, at::ScalarType dtype) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : clip.modules()) {
    const bool multiplies = module->as<LinearLayerImpl>() || module->as<ConvLayerImpl>() ||
                            module->as<ClipAttentionImpl>();
    if (!multiplies) continue;
    for (at::Tensor& each : module->parameters(/*recurse=*/false)) each.set_data(each.to(dtype));
  }
  auto parameters = clip.named_parameters();
  for (const char* name : {"text_projection", "visual.proj"}) {
    if (at::Tensor* const found = parameters.find(name)) found->set_data(found->to(dtype));
  }
}

TEST_CASE("features in half precision are the references'") {
  for_each_case([](ClipCase& one) {
    train_once(one);
    one.clip->eval();
    const torch::NoGradGuard no_grad;
    const bool is_bfloat = one.fixture.json.at("maker") == "open_clip";
    hold_weights_as(*one.clip, is_bfloat ? at::kBFloat16 : at::kHalf);
    const double tolerance = is_bfloat ? kBfloat16Tolerance : kHalfTolerance;
    const at::Tensor image = one.clip->image_features(one.images);
    CHECK(image.scalar_type() == (is_bfloat ? at::kBFloat16 : at::kHalf));
    const auto close = [&](const at::Tensor& actual, const std::string& name) {
      const at::Tensor expected = one.fixture.tensor(name);
      const double noise = one.fixture.json.at("noise").at(name).get<double>();
      const double roundings = kHalfNoiseSteps * noise / expected.abs().max().item<double>();
      expect_close(actual, expected, std::max(tolerance, roundings), name);
    };
    close(image, "half.image_features");
    close(one.clip->text_features(one.tokens), "half.text_features");
    CHECK(one.clip->embed_text(one.tokens).encodings.scalar_type() == at::kFloat);
    CHECK(one.clip->embed_image(one.larger).scalar_type() == at::kFloat);
  });
}

}  // namespace
}  // namespace dalle2::test
