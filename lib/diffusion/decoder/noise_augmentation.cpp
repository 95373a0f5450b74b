// SPDX-License-Identifier: MIT
#include "diffusion/decoder/noise_augmentation.h"

#include <torch/torch.h>

#include "base/error.h"

namespace dalle2 {
namespace {

at::Tensor add(const at::Tensor& noise, double strength, const at::Tensor& normals) {
  if (strength == 0) return noise;
  D2_CHECK(normals.defined(), "an augmentation of the noise without its draws");
  return noise + strength * normals;
}

}  // namespace

NoiseAugmentationDraws NoiseAugmentation::draw(at::IntArrayRef sizes,
                                               at::Generator generator) const {
  const auto options = at::TensorOptions(generator.device()).dtype(at::kFloat);
  NoiseAugmentationDraws draws;
  if (offset != 0) draws.offset = at::randn({sizes[0], sizes[1], 1, 1}, generator, options);
  if (perturbation != 0) draws.perturbation = at::randn(sizes, generator, options);
  return draws;
}

at::Tensor NoiseAugmentation::target_noise(const at::Tensor& noise,
                                           const NoiseAugmentationDraws& draws) const {
  return add(noise, offset, draws.offset);
}

at::Tensor NoiseAugmentation::input_noise(const at::Tensor& target_noise,
                                          const NoiseAugmentationDraws& draws) const {
  return add(target_noise, perturbation, draws.perturbation);
}

}  // namespace dalle2
