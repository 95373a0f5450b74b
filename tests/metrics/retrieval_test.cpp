// SPDX-License-Identifier: MIT
#include "metrics/feature_metrics.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

namespace dalle2 {
namespace {

using Figures = std::map<std::string, double>;

Figures figures_of(const RetrievalSamples& samples) {
  const auto found = retrieval_figures(samples);
  return {found.begin(), found.end()};
}

/// Features along axes of their own, which are as near to each other as can be told apart.
RetrievalSamples perfect(int64_t count) {
  const at::Tensor axes = at::eye(count);
  return {.pairs = at::stack({axes, axes}, 1), .captions = at::arange(count)};
}

TEST_CASE("pairs that are nearest to each other are all found") {
  const Figures found = figures_of(perfect(8));
  CHECK(found == Figures{{"image_to_text_R@1", 1},
                         {"image_to_text_R@5", 1},
                         {"text_to_image_R@1", 1},
                         {"text_to_image_R@5", 1}});
}

TEST_CASE("a picture whose own caption is the third nearest counts among five and not among one") {
  RetrievalSamples samples = perfect(8);
  // Picture 0 is nearer to the captions 1 and 2 than to its own.
  at::Tensor picture = at::zeros({8});
  picture.narrow(0, 0, 3).copy_(at::tensor({0.5F, 0.6F, 0.62F}));
  samples.pairs[0][0].copy_(picture);
  const Figures found = figures_of(samples);
  CHECK(found.at("image_to_text_R@1") == Approx(7.0 / 8));
  CHECK(found.at("image_to_text_R@5") == 1);
  CHECK(found.at("text_to_image_R@1") == 1);
}

TEST_CASE("the same caption twice is one candidate, and either of its pictures is right") {
  RetrievalSamples samples = perfect(4);
  samples.captions = at::tensor({7, 7, 3, 2}, at::kLong);
  samples.pairs[1][1].copy_(samples.pairs[0][1]);  // the same text
  // Picture 1 is not near it; the caption finds picture 0.
  const Figures found = figures_of(samples);
  CHECK(found.at("text_to_image_R@1") == 1);
  CHECK(found.at("image_to_text_R@1") == Approx(3.0 / 4));
}

TEST_CASE("features that are all the same, or NaN, find nothing") {
  for (const float value : {0.5F, std::numeric_limits<float>::quiet_NaN()}) {
    RetrievalSamples samples = perfect(8);
    samples.pairs.fill_(value);
    for (const auto& [name, share] : figures_of(samples)) {
      CAPTURE(name, value);
      CHECK(share == 0);
    }
  }
}

TEST_CASE("tables of many rows give what small ones give") {
  torch::manual_seed(1);
  const int64_t count = 2500;
  const at::Tensor pairs = torch::nn::functional::normalize(
      at::randn({count, 2, 16}), torch::nn::functional::NormalizeFuncOptions().dim(-1));
  RetrievalSamples samples = perfect(1);
  samples.pairs = pairs;
  samples.captions = at::arange(count);
  const at::Tensor near = pairs.select(1, 0).matmul(pairs.select(1, 1).t());
  const at::Tensor right = near.argmax(1) == at::arange(count);
  CHECK(figures_of(samples).at("image_to_text_R@1") ==
        Approx(right.to(at::kDouble).mean().item<double>()));
}

TEST_CASE("without samples there are no figures") {
  CHECK(retrieval_figures({}).empty());
}

TEST_CASE("the five similarities are mean cosines, worked out by hand") {
  // Texts along the axes; images turned by 60 degrees; what is drawn by 30 degrees, at any length.
  const double s60 = std::sqrt(3) / 2;
  const at::Tensor texts = torch::tensor({{1.0, 0.0}, {0.0, 2.0}}, at::kFloat);
  const at::Tensor images = torch::tensor({{0.5, s60}, {-s60, 0.5}}, at::kFloat);
  const at::Tensor drawn = torch::tensor({{3 * s60, 3 * 0.5}, {-0.5, s60}}, at::kFloat);
  const auto similarities = embedding_similarities(texts, images, drawn);
  const std::vector<std::pair<std::string, double>> expected = {
      {"baseline similarity", 0.5},                // cos 60
      {"similarity with text", s60},               // cos 30
      {"similarity with original image", s60},     // 60 - 30
      {"similarity with unrelated caption", 0.0},  // cos 60 and cos 120
      {"difference from baseline similarity", s60 - 0.5}};
  REQUIRE(similarities.size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(similarities[i].first == expected[i].first);
    CHECK(similarities[i].second == Approx(expected[i].second).margin(1e-6));
  }
}

}  // namespace
}  // namespace dalle2
