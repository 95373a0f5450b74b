// SPDX-License-Identifier: MIT
#include "metrics/embedding_metrics.h"

#include <torch/torch.h>
#include <catch2/catch.hpp>

#include <cmath>

namespace dalle2 {
namespace {

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
