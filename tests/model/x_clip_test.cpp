// SPDX-License-Identifier: MIT
// CLIPs of x-clip of random configurations against x-clip and dalle2-pytorch's adapter.
#include "model/clip/x_clip.h"

#include <torch/torch.h>

#include "base/error.h"
#include "checkpoint/clip/config_in_file.h"
#include "checkpoint/module_state.h"
#include "model/clip/frozen_clip.h"
#include "support/rounding_noise.h"

namespace dalle2::test {
namespace {

// Sums in another order: a few roundings of float32 a layer.
constexpr double kTolerance = 2e-5;

struct Case {
  explicit Case(const std::string& path)
      : fixture(load_fixture(path)),
        clip(std::make_shared<XClipImpl>(config_in_file<XClipConfig>(
            Json::parse(fixture.json.at("config").dump()), fixture.path))) {
    fill_parameters(*clip);
    clip->eval();
    const auto side = fixture.json.at("side").get<int64_t>();
    tokens = fixture.tensor("tokens");
    images = wave(
        {tokens.size(0), 3, side, side}, 0.61, fixture.json.at("phase").get<double>(), 0.5, 0.5);
  }

  Fixture fixture;
  std::shared_ptr<XClipImpl> clip;
  at::Tensor images, tokens;
};

template <class Check>
void for_each_case(const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder("x_clip"), 8)) {
    Case one(path);
    INFO(path << " " << one.fixture.json.at("config").dump());
    check(one);
  }
}

TEST_CASE("the tensors of an x-clip's CLIP have its names, in its order") {
  for_each_case([](Case& one) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*one.clip)) names.push_back(name);
    CHECK(names == one.fixture.json.at("names").get<std::vector<std::string>>());
  });
}

TEST_CASE("embeddings and encodings of an x-clip's CLIP are those of the reference's adapter") {
  for_each_case([](Case& one) {
    const torch::NoGradGuard no_grad;
    expect_within_noise(one.clip->embed_image(one.images), one.fixture, "image_embed", kTolerance);
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    expect_within_noise(texts.embed, one.fixture, "text_embed", kTolerance);
    expect_within_noise(texts.encodings, one.fixture, "text_encodings", kTolerance);
    CHECK(at::equal(texts.mask, (one.fixture.tensor("text_encodings") != 0).any(-1)));
  });
}

TEST_CASE("in a model an x-clip's CLIP is frozen, and drops no patches while that trains") {
  for_each_case([](Case& one) {
    torch::nn::Module model;
    model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(one.clip));
    model.train();
    CHECK(state_dict(model).front().first == "clip.clip.temperature");
    for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
    expect_within_noise(one.clip->embed_image(one.images), one.fixture, "image_embed", kTolerance);
  });
}

TEST_CASE("an x-clip's CLIP sees what fills up a text, so nothing of it is left out") {
  Case one(fixture_files(fixture_folder("x_clip"), 8).front());
  const torch::NoGradGuard no_grad;
  const at::Tensor short_texts = one.tokens.clone();
  short_texts.narrow(1, 2, short_texts.size(1) - 2).zero_();
  CHECK(one.clip->trimmed(short_texts).equal(short_texts));
  const at::Tensor whole = one.clip->embed_text(short_texts).embed;
  CHECK(
      (whole - one.clip->embed_text(short_texts.narrow(1, 0, 2)).embed).abs().max().item<double>() >
      1e-4);
  CHECK_THROWS_AS(one.clip->embed_image(at::zeros({1, 3, 1, 1})), DataError);
}

}  // namespace
}  // namespace dalle2::test
