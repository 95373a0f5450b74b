// SPDX-License-Identifier: MIT
// CLIPs of x-clip of random configurations against x-clip and dalle2-pytorch's adapter.
#include "model/clip/x_clip.h"

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/clip/clip_shape.h"
#include "checkpoint/module_state.h"
#include "model/clip/clip_encoder.h"
#include "support/rounding_noise.h"

namespace dalle2::test {
namespace {

constexpr size_t kLeastXClips = 8;

/// A case of tests/parity/make_x_clip.py.
struct XClipCase {
  explicit XClipCase(const std::string& path)
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

  void expect(const at::Tensor& actual, const char* name) const {
    // Sums in another order: a few roundings of float32 a layer.
    expect_within_noise(actual, fixture, name, 2e-5);
  }

  Fixture fixture;
  std::shared_ptr<XClipImpl> clip;
  at::Tensor images, tokens;
};

template <class Check>
void for_each_x_clip(const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder("x_clip"), kLeastXClips)) {
    XClipCase one(path);
    INFO(path << " " << one.fixture.json.at("config").dump());
    check(one);
  }
}

TEST_CASE("the tensors of an x-clip's CLIP have its names, in its order") {
  for_each_x_clip([](XClipCase& one) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : state_dict(*one.clip)) names.push_back(name);
    CHECK(names == one.fixture.json.at("names").get<std::vector<std::string>>());
  });
}

TEST_CASE("embeddings and encodings of an x-clip's CLIP are those of the reference's adapter") {
  for_each_x_clip([](XClipCase& one) {
    const torch::NoGradGuard no_grad;
    one.expect(one.clip->embed_image(one.images), "image_embed");
    const ClipTexts texts = one.clip->embed_text(one.tokens);
    one.expect(texts.embed, "text_embed");
    one.expect(texts.encodings, "text_encodings");
    CHECK(at::equal(texts.mask, (one.fixture.tensor("text_encodings") != 0).any(-1)));
  });
}

TEST_CASE("in a model an x-clip's CLIP is frozen, and drops no patches while that trains") {
  for_each_x_clip([](XClipCase& one) {
    torch::nn::Module model;
    model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(one.clip));
    model.train();
    CHECK(state_dict(model).front().first == "clip.clip.temperature");
    for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
    one.expect(one.clip->embed_image(one.images), "image_embed");
  });
}

TEST_CASE("an x-clip's CLIP sees what fills up a text, so nothing of it is left out") {
  const XClipCase one(fixture_files(fixture_folder("x_clip"), kLeastXClips).front());
  const torch::NoGradGuard no_grad;
  const at::Tensor short_texts = at::zeros_like(one.tokens);
  short_texts.select(1, 0).fill_(1);
  short_texts.select(1, 1).fill_(2);
  CHECK(one.clip->trimmed(short_texts).equal(short_texts));
  const at::Tensor whole = one.clip->embed_text(short_texts).embed;
  const at::Tensor cut = one.clip->embed_text(short_texts.narrow(1, 0, 2)).embed;
  CHECK((whole - cut).abs().max().item<double>() > 1e-4);
  CHECK_THROWS_AS(one.clip->embed_image(at::zeros({1, 3, 1, 1})), DataError);
}

}  // namespace
}  // namespace dalle2::test
