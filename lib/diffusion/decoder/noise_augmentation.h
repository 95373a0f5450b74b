// SPDX-License-Identifier: MIT
// Noise offset and input perturbation: what is added to the white noise of a training step.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace dalle2 {

/// Standard normal numbers; undefined where an option is off.
struct NoiseAugmentationDraws {
  at::Tensor offset;        ///< [B, C, 1, 1]
  at::Tensor perturbation;  ///< [B, C, H, W]
};

struct NoiseAugmentation {
  double offset = 0.0;
  double perturbation = 0.0;

  /// @param sizes of the noise, [B, C, H, W] @return tensors on the generator's device
  NoiseAugmentationDraws draw(at::IntArrayRef sizes, at::Generator generator) const;

  /// The noise that the target holds: a share of it is the same in a whole plane, because white
  /// noise never teaches the network to change an image's mean. [B, C, H, W]
  at::Tensor target_noise(const at::Tensor& noise, const NoiseAugmentationDraws& draws) const;

  /// The noise that the network sees: `target_noise` plus some that the target does not hold, like
  /// the sampler's own errors later (Ning et al. 2023). [B, C, H, W]
  at::Tensor input_noise(const at::Tensor& target_noise, const NoiseAugmentationDraws& draws) const;
};

}  // namespace dalle2
