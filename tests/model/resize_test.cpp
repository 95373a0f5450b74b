// SPDX-License-Identifier: MIT
#include "model/resize.h"

#include "support/fixture.h"

namespace dalle2::test {
namespace {

at::Tensor golden_image() {
  return wave({2, 3, 16, 16}, 0.05, 0.0, 0.5, 0.5);
}

TEST_CASE("resampling equals ResizeRight up and down") {
  expect_golden(resize_image_to(golden_image(), 24), "resize 16->24", 1e-5);
  expect_golden(
      resize_image_to(golden_image(), 10, std::pair(0.0, 1.0)), "resize 16->10 clamp", 1e-5);
  const at::Tensor ramp = at::arange(4, at::kFloat).expand({1, 1, 4, 4});
  // Middle rows are clear of the dark border.
  const at::Tensor row = resize_image_to(ramp, 6)[0][0][2];
  const at::Tensor expected =
      torch::tensor({-0.0509F, 0.3848F, 1.0262F, 1.6127F, 2.4190F, 2.3722F});
  CHECK((row / row[2] * 1.0262 - expected).abs().max().item<double>() < 3e-3);
}

TEST_CASE("a square image gets exactly the size that was asked for") {
  // 100 / 11 * 11 is a little more than 100 in floating point.
  CHECK(resize_image_to(wave({1, 1, 11, 11}), 100).sizes() == at::IntArrayRef({1, 1, 100, 100}));
  CHECK(resize_image_to(wave({1, 1, 49, 49}), 7).sizes() == at::IntArrayRef({1, 1, 7, 7}));
  CHECK(resize_image_to(wave({1, 2, 8, 16}), 12).sizes() == at::IntArrayRef({1, 2, 6, 12}));
}

TEST_CASE("a size that sampling has met first can be trained with") {
  const at::Tensor image = at::rand({1, 2, 13, 13});
  {
    const c10::InferenceMode sampling;
    resize_image_to(image, 37);
  }
  const at::Tensor leaf = image.clone().set_requires_grad(true);
  const at::Tensor sum = resize_image_to(leaf, 37).sum();
  sum.backward();
  // It is linear in the image.
  CHECK((leaf.grad() * image).sum().item<double>() == Approx(sum.item<double>()).epsilon(1e-4));
}

TEST_CASE("an image of the right width comes back untouched, not even clamped") {
  const at::Tensor image = wave({1, 3, 8, 8}, 0.37, 0.0, 3.0);
  CHECK(resize_image_to(image, 8, std::pair(0.0, 1.0)).is_same(image));
}

TEST_CASE("results stay within the range that was asked for") {
  const at::Tensor out =
      resize_image_to(wave({1, 1, 8, 8}, 2.0, 0.0, 3.0), 12, std::pair(-1.0, 1.0));
  CHECK(out.max().item<double>() == 1.0);
  CHECK(out.min().item<double>() == -1.0);
}

TEST_CASE("nearest resampling makes any image square") {
  const at::Tensor image = wave({1, 1, 4, 8});
  const at::Tensor out = resize_image_to(image, 4, std::nullopt, /*nearest=*/true);
  REQUIRE(out.sizes() == at::IntArrayRef({1, 1, 4, 4}));
  CHECK(out[0][0][1][2].item<float>() == image[0][0][1][4].item<float>());
}

}  // namespace
}  // namespace dalle2::test
