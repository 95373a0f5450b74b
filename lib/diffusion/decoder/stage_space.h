// SPDX-License-Identifier: MIT
// What a stage of the cascade denoises: the pixels of pictures, or the map that a VAE makes of them
// (latent diffusion, Rombach et al. 2022).
#pragma once

#include <ATen/core/Tensor.h>

#include "diffusion/decoder/image_range.h"
#include "model/vae/vqgan_vae.h"

namespace dalle2 {

class StageSpace {
 public:
  virtual ~StageSpace() = default;

  /// @param images [B, C, H, W] in the range of the data @return [B, D, h, w], without gradients
  virtual at::Tensor from_images(const at::Tensor& images) = 0;
  /// The way back. @return [B, C, H, W]
  virtual at::Tensor to_images(const at::Tensor& x) = 0;
  /// Whether a clean x lies in [-1, 1], to which sampling then clips it.
  virtual bool is_bounded() const = 0;
};

/// Pixels in [-1, 1].
class PixelSpace : public StageSpace {
 public:
  explicit PixelSpace(ImageRange range) : range_(range) {}
  at::Tensor from_images(const at::Tensor& images) override { return range_.normalize(images); }
  at::Tensor to_images(const at::Tensor& x) override { return range_.unnormalize(x); }
  bool is_bounded() const override { return true; }

 private:
  ImageRange range_;
};

/// The encoded map of a VAE, not yet quantised, times `scale`. The VAE is used in eval mode and
/// without gradients, whatever mode the decoder is in.
class LatentSpace : public StageSpace {
 public:
  LatentSpace(VqganVae vae, double scale) : vae_(std::move(vae)), scale_(scale) {}
  at::Tensor from_images(const at::Tensor& images) override;
  at::Tensor to_images(const at::Tensor& x) override;
  bool is_bounded() const override { return false; }

 private:
  VqganVae vae_;
  double scale_;
};

}  // namespace dalle2
