// SPDX-License-Identifier: MIT
#include "diffusion/decoder/lowres_conditioner.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

#include <set>

#include "diffusion/seeded_generator.h"
#include "model/resize.h"
#include "support/fixture.h"

namespace dalle2::test {
namespace {

at::Tensor nearest(const at::Tensor& image, int64_t side) {
  return resize_image_to(image, side, std::nullopt, /*nearest=*/true);
}

}  // namespace

TEST_CASE("The Gaussian blur equals the reference's, borders included") {
  const Fixture f = load_fixture("diffusion/formulas");
  for (const int64_t kernel : {3, 5, 7}) {
    const auto sigma = f.json["blur_sigma"][std::to_string(kernel)].get<double>();
    expect_close(gaussian_blur(f.tensor("blur.image"), kernel, sigma),
                 f.tensor("blur." + std::to_string(kernel)),
                 1e-6,
                 "blur");
  }
  at::Tensor point = at::zeros({1, 1, 5, 5});
  point[0][0][2][2] = 1;
  const at::Tensor spread = gaussian_blur(point, 3, 0.6)[0][0];
  CHECK(spread[2][2].item<double>() == Approx(0.4452131));
  CHECK(spread[2][1].item<double>() == Approx(0.1110149));
  CHECK(spread[1][1].item<double>() == Approx(0.0276818).epsilon(1e-5));
}

TEST_CASE("The image shrinks to the previous stage first, unless told not to") {
  const at::Tensor image = wave({2, 3, 32, 32}, 0.05, 0, 0.5, 0.5);
  LowresOptions options;
  options.use_blur = false;
  CHECK(at::equal(LowresConditioner(options)->forward(image, 16, 8, {}).image,
                  nearest(nearest(image, 8), 16)));
  options.downsample_first = false;
  CHECK(at::equal(LowresConditioner(options)->forward(image, 16, 8, {}).image, nearest(image, 16)));
}

TEST_CASE("Values outside the range of the data are clamped, each range its own") {
  const at::Tensor image = wave({1, 1, 16, 16}, 0.05, 0, 3.0);
  LowresOptions options;
  options.use_blur = false;
  for (const bool auto_normalize : {true, false}) {
    options.range.auto_normalize = auto_normalize;
    const at::Tensor out = LowresConditioner(options)->forward(image, 8, 4, {}).image;
    CHECK(out.min().item<double>() == (auto_normalize ? 0.0 : -1.0));
    CHECK(out.max().item<double>() == 1.0);
  }
}

TEST_CASE("Blur is applied where it was decided, with the drawn kernel and sigma") {
  const at::Tensor image = wave({1, 3, 16, 16}, 0.05, 0, 0.4, 0.5);
  LowresConditioner conditioner{LowresOptions{}};
  LowresDraws draws;
  draws.blur_sigma = 0.8;
  draws.blur_kernel_size = 5;
  CHECK(at::equal(conditioner->forward(image, 16, 8, draws).image, nearest(nearest(image, 8), 16)));
  draws.blur = true;
  CHECK(at::equal(conditioner->forward(image, 16, 8, draws).image,
                  nearest(gaussian_blur(nearest(image, 8), 5, 0.8), 16)));
}

TEST_CASE("Blur draws keep to the probability and the ranges, and kernels are odd") {
  LowresOptions options;
  options.blur_prob = 0.3;
  options.blur_sigma = std::vector<double>{0.4, 1.2};
  options.blur_kernel_size = std::vector<int64_t>{3, 7};
  LowresConditioner conditioner(options);
  at::Generator generator = generator_of(1);
  int blurred = 0;
  std::set<int64_t> kernels;
  double low = 9;
  double high = 0;
  constexpr int kDraws = 2000;
  for (int i = 0; i < kDraws; ++i) {
    const LowresDraws draws = conditioner->draw_blur(generator);
    blurred += draws.blur ? 1 : 0;
    kernels.insert(draws.blur_kernel_size);
    low = std::min(low, draws.blur_sigma);
    high = std::max(high, draws.blur_sigma);
  }
  CHECK(std::abs(blurred - 0.3 * kDraws) < 3 * std::sqrt(0.3 * 0.7 * kDraws));
  CHECK(kernels == std::set<int64_t>{3, 5, 7});
  CHECK(low >= 0.4);
  CHECK(low < 0.45);
  CHECK(high <= 1.2);
  CHECK(high > 1.15);
}

TEST_CASE("Noise comes from a linear schedule of 1000 levels that is in the state dict") {
  LowresOptions options;
  options.use_blur = false;
  options.use_noise = true;
  LowresConditioner conditioner(options);
  CHECK(conditioner->named_buffers().keys().front() == "noise_scheduler.betas");
  CHECK(conditioner->named_buffers().size() == 13);
  CHECK(conditioner->named_buffers()["noise_scheduler.alphas_cumprod"][500].item<double>() ==
        Approx(0.0777967).epsilon(1e-5));

  const at::Tensor image = wave({2, 3, 8, 8}, 0.05, 0, 0.4, 0.5);
  LowresDraws draws;
  draws.noise_level = at::tensor({0, 500}, at::kLong);
  draws.noise = wave({2, 3, 8, 8}, 0.83);
  const LowresImage result = conditioner->forward(image, 8, 8, draws);
  CHECK(at::equal(result.noise_level, draws.noise_level));
  const at::Tensor x =
      std::sqrt(0.0777967) * (image[1] * 2 - 1) + std::sqrt(1 - 0.0777967) * draws.noise[1];
  expect_close(
      result.image[1], (x + 1) / 2, 1e-5, "noised, back in the range of the data, not clamped");
  CHECK(LowresConditioner(LowresOptions{})->named_buffers().is_empty());
}

}  // namespace dalle2::test
