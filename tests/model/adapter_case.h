// SPDX-License-Identifier: MIT
// Cases of tests/parity/adapter_cases.py: CLIPs of other packages by dalle2-pytorch's adapters.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/clip/config_in_file.h"
#include "checkpoint/module_state.h"
#include "model/clip/frozen_clip.h"
#include "support/rounding_noise.h"

namespace dalle2::test {

// Sums in another order: a few roundings of float32 a layer.
inline constexpr double kAdapterTolerance = 2e-5;

template <class Network, class Config>
struct AdapterCase {
  explicit AdapterCase(const std::string& path)
      : fixture(load_fixture(path)),
        clip(std::make_shared<Network>(
            config_in_file<Config>(Json::parse(fixture.json.at("config").dump()), fixture.path))) {
    fill_parameters(*clip);
    clip->eval();
    const auto side = fixture.json.at("side").get<int64_t>();
    tokens = fixture.tensor("tokens");
    images = wave(
        {tokens.size(0), 3, side, side}, 0.61, fixture.json.at("phase").get<double>(), 0.5, 0.5);
  }

  void expect(const at::Tensor& actual, const char* name) const {
    expect_within_noise(actual, fixture, name, kAdapterTolerance);
  }

  Fixture fixture;
  std::shared_ptr<Network> clip;
  at::Tensor images, tokens;
};

/// @param check gets each case of a folder of fixtures, of which there are at least `least`
template <class Case, class Check>
void for_each_adapter_case(const char* folder, size_t least, const Check& check) {
  for (const std::string& path : fixture_files(fixture_folder(folder), least)) {
    Case one(path);
    INFO(path << " " << one.fixture.json.at("config").dump());
    check(one);
  }
}

template <class Case>
void expect_names(const Case& one) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(*one.clip)) names.push_back(name);
  CHECK(names == one.fixture.json.at("names").template get<std::vector<std::string>>());
}

/// @return what the CLIP makes of the pictures
template <class Case>
at::Tensor expect_embeddings(const Case& one, const ClipTexts& texts) {
  const at::Tensor images = one.clip->embed_image(one.images);
  one.expect(images, "image_embed");
  one.expect(texts.embed, "text_embed");
  one.expect(texts.encodings, "text_encodings");
  CHECK(at::equal(texts.mask, (one.fixture.tensor("text_encodings") != 0).any(-1)));
  return images;
}

/// In a model that trains. @param first name of a tensor
template <class Case>
void expect_frozen(const Case& one, const std::string& first) {
  torch::nn::Module model;
  model.register_module(kFrozenClipName, std::make_shared<FrozenClipImpl>(one.clip));
  model.train();
  CHECK(state_dict(model).front().first == first);
  for (const at::Tensor& parameter : model.parameters()) CHECK_FALSE(parameter.requires_grad());
  one.expect(one.clip->embed_image(one.images), "image_embed");
}

/// Whether what fills up a text changes it, so that nothing of it may be left out.
template <class Case>
void expect_filling_is_seen(const Case& one) {
  const torch::NoGradGuard no_grad;
  const at::Tensor short_texts = at::zeros_like(one.tokens);
  short_texts.select(1, 0).fill_(1);
  short_texts.select(1, 1).fill_(2);
  CHECK(one.clip->trimmed(short_texts).equal(short_texts));
  const at::Tensor whole = one.clip->embed_text(short_texts).embed;
  const at::Tensor cut = one.clip->embed_text(short_texts.narrow(1, 0, 2)).embed;
  CHECK((whole - cut).abs().max().template item<double>() > 1e-4);
}

}  // namespace dalle2::test
